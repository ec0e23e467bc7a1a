"""Models of transformers keep keys and values for generating; stages and replays run without."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

SWITCH = "use_cache"
"""What transformers calls it, as an argument and as a field of a model's config."""


def switches(model: nn.Module) -> list[Any]:
    """The configs of transformers in a model that say whether keys and values are kept.

    A cache is an object that one block after the other writes into, so that none could be cut off
    from the others or run twice, and training reads nothing of it.
    """
    configs = {id(held): held for m in model.modules() if (held := vars(m).get("config"))}
    return [held for held in configs.values() if _is_foreign(held) and hasattr(held, SWITCH)]


def _is_foreign(config: Any) -> bool:
    """Whether a config is of transformers: elsewhere the same word may mean something else."""
    return any(kind.__module__.partition(".")[0] == "transformers" for kind in type(config).__mro__)


@contextmanager
def switched_off(configs: Sequence[Any]) -> Iterator[None]:
    """Let models keep no keys and values; their configs are as before afterwards."""
    before = [getattr(config, SWITCH) for config in configs]
    try:
        for config in configs:
            setattr(config, SWITCH, False)
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            setattr(config, SWITCH, value)


def check_not_asked_for(configs: Sequence[Any], sample: Mapping[str, Any] | None) -> None:
    """Refuse a sample that wants keys and values.

    Raises:
        ValueError: It does.
    """
    if configs and (sample or {}).get(SWITCH):
        raise ValueError(
            f"the sample gives {SWITCH!r} = True, and a cache of keys and values, into which every "
            f"block writes, cannot travel between stages; leave {SWITCH!r} out of the inputs, or "
            "give False: training does not read it."
        )
