"""The loops of torch's own stacks of layers, whose code decides by values not known yet."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import nn

from fleetx.strategies.pipeline.refusal import Following
from fleetx.torch_internals import canonical_mask, detect_is_causal_mask, get_seq_len

Loop = Callable[[Following, Any, dict[str, Any]], Any]


def loop_of(tracer: Following, module: nn.Module) -> Callable[..., Any] | None:
    """What to follow in place of the forward of a module; None for the forward itself."""
    forward: Any = getattr(type(module), "forward", None)
    loops: dict[Any, Loop] = {
        nn.TransformerEncoder.forward: _encode,
        nn.TransformerDecoder.forward: _decode,
    }
    if forward not in loops:
        return None

    def follow(*args: Any, **kwargs: Any) -> Any:
        given = signature(forward).bind(module, *args, **kwargs)
        given.apply_defaults()
        return loops[forward](tracer, module, given.arguments)

    return follow


def _encode(tracer: Following, stack: Any, given: dict[str, Any]) -> Any:
    src, mask, padding = given["src"], given["mask"], given["src_key_padding_mask"]
    nested = mask is None and padding is not None and stack.use_nested_tensor
    if nested and not stack.layers[0].training:
        raise tracer.refusal(
            "an nn.TransformerEncoder that evaluates may leave out what the mask hides",
            remedy="make it with enable_nested_tensor=False",
        )
    mask = _canonical(tracer, mask, src)
    options = {
        "src_mask": mask,
        "src_key_padding_mask": _canonical(tracer, padding, src),
        "is_causal": _causal(tracer, stack, mask, given["is_causal"], src),
    }
    for layer in stack.layers:
        src = layer(src, **options)
    return src if stack.norm is None else stack.norm(src)


def _decode(tracer: Following, stack: Any, given: dict[str, Any]) -> Any:
    options = {key: value for key, value in given.items() if key not in ("self", "tgt", "memory")}
    tgt, mask, is_causal = given["tgt"], given["tgt_mask"], given["tgt_is_causal"]
    options["tgt_is_causal"] = _causal(tracer, stack, mask, is_causal, tgt)
    for layer in stack.layers:
        tgt = layer(tgt, given["memory"], **options)
    return tgt if stack.norm is None else stack.norm(tgt)


def _canonical(tracer: Following, mask: Any, src: Any) -> Any:
    """A mask of numbers instead of one of yes and no, as torch makes it."""
    if mask is None:
        return None
    args = (mask, "mask", None, "", src.dtype, False)
    return tracer.create_proxy("call_function", canonical_mask, args, {})


def _causal(tracer: Following, stack: Any, mask: Any, is_causal: Any, src: Any) -> Any:
    """Whether a mask hides the future, which torch finds out from the mask if nobody says it."""
    if mask is None or is_causal is not None:
        return is_causal is True
    size = (src, stack.layers[0].self_attn.batch_first)
    length = tracer.create_proxy("call_function", get_seq_len, size, {})
    return tracer.create_proxy("call_function", detect_is_causal_mask, (mask, None, length), {})
