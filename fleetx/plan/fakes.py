"""Models and batches without numbers, and traces of what their forwards do."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fleetx.plan.repeated_calls import Blocks, RepeatedCalls, blocks_of
from fleetx.plan.trace import Contexts, Forward, Trace, Tracing
from fleetx.torch_internals import FakeTensorMode, as_if_compiling, tree_map


class Fakes:
    """Tensors without numbers, on the device on which the model would compute."""

    def __init__(self, device: torch.device) -> None:
        self._mode, self._device = FakeTensorMode(allow_non_fake_inputs=True), device
        self._blocks: dict[nn.Module, Blocks] = {}
        self._as_if_compiling = False
        """Whether the model could be followed in no other way."""

    def of(self, tree: Any) -> Any:
        """The same with its tensors without numbers; parameters stay parameters."""
        return tree_map(lambda leaf: self._fake(leaf) if isinstance(leaf, Tensor) else leaf, tree)

    def _fake(self, tensor: Tensor) -> Tensor:
        with self._mode:
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
            )
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(made, requires_grad=tensor.requires_grad)
            return made.requires_grad_(tensor.requires_grad)

    def trace(
        self,
        model: nn.Module,
        batch: tuple[Any, Any],
        *,
        forward: Forward,
        contexts: Contexts,
        criterion: Callable[[Any, Any], Any] | None,
    ) -> Trace:
        """What a forward of a model without numbers does, and its criterion after it.

        Code that stops at missing numbers may have another way for compilers, which have none.
        """

        def traced() -> Trace:
            return self._traced(
                model, batch, forward=forward, contexts=contexts, criterion=criterion
            )

        with _quiet():
            if not self._as_if_compiling:
                try:
                    return traced()
                except Exception as error:
                    first = error
            with as_if_compiling():
                try:
                    found = traced()
                except Exception as error:
                    raise error if self._as_if_compiling else first from None
        self._as_if_compiling = True
        return found

    def _traced(
        self,
        model: nn.Module,
        batch: tuple[Any, Any],
        *,
        forward: Forward,
        contexts: Contexts,
        criterion: Callable[[Any, Any], Any] | None,
    ) -> Trace:
        inputs, targets = batch
        if model not in self._blocks:
            self._blocks[model] = blocks_of(model)
        tracing = Tracing(model)
        tracing.given(batch)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self._mode)
            stack.enter_context(saved_tensors_hooks(tracing.pack, lambda tensor: tensor))
            stack.enter_context(tracing.listening(model))
            stack.enter_context(RepeatedCalls(tracing, model, self._blocks[model]).replaced())
            stack.enter_context(tracing)
            with ExitStack() as around:
                for context in contexts:
                    around.enter_context(context())
                outputs = forward(model, inputs, tracing)
            if criterion is not None:
                criterion(outputs, targets)
            tracing.trace.has_criterion = criterion is not None or _loss_of(outputs) is not None
        return tracing.trace


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs what stops without numbers; it is raised as well, and told by whoever asked."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _loss_of(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
