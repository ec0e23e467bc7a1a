"""What a plan is made for: the shapes of a model, of its optimizer and of a batch."""

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx.plan.error import PlanError
from fleetx.plan.job import arguments
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.pieces import Piece, Pieces
from fleetx.plan.run import Run
from fleetx.torch_internals import tree_leaves, tree_map

if TYPE_CHECKING:
    from fleetx.plan.fakes import Fakes
    from fleetx.plan.trace import Forward, Trace, Tracing
    from fleetx.plan.work import Clock

_Found = TypeVar("_Found")
SMALL = (2, 3)
"""Two sizes of micro-batches, from which larger ones follow: all that depends on the size grows in
proportion. One sample alone takes other ways through some models."""


@dataclass(kw_only=True)
class Subject:
    """A model and what is known of its training; it is not touched, and may have no numbers.

    Traces are kept, so that whoever compares many plans for one subject pays for few of them.
    """

    model: nn.Module | None = None
    optimizer: Optimizer | None = None
    sample: Any = None
    """Inputs of one worker's batch, as ``fleet.distributed_model(sample=...)`` takes them."""
    targets: Any = None
    criterion: Callable[[Any, Any], Any] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where workers will compute."""
    clock: "Clock | None" = None
    """Measures operators on the device, if it is there."""

    _samples: int | None = field(init=False, default=None)
    """Of a batch that is not there: what it would take follows from smaller ones."""
    _shape: nn.Module | None = field(init=False, default=None)
    _fakes: "Fakes | None" = field(init=False, default=None)
    _fake: nn.Module | None = field(init=False, default=None)
    _traces: dict[Any, "Trace | Exception"] = field(init=False, default_factory=dict)
    kept: dict[Any, Any] = field(init=False, default_factory=dict)
    """What strategies found out about the model, by keys of theirs."""

    @property
    def shape(self) -> nn.Module:
        """A copy of the model on the meta device, for whoever looks at layers."""
        assert self.model is not None
        if self._shape is None:
            self._shape = _copy(self.model, _on_meta)
        return self._shape

    @property
    def traced_on(self) -> torch.device:
        """Where the forward is traced: torch asks devices, even for tensors without numbers."""
        here = torch.accelerator.current_accelerator(check_available=True)
        is_here = here is not None and here.type == self.device.type
        return self.device if is_here else torch.device("cpu")

    @property
    def traced_model(self) -> nn.Module:
        """A copy of the model on tensors without numbers, whose forward is traced."""
        assert self.model is not None
        if self._fake is None:
            from fleetx.plan.fakes import Fakes  # loads torch's fake tensors

            self._fakes = Fakes(self.traced_on)
            self._fake = _copy(self.model, self._fakes.of)
        return self._fake

    def with_samples(self, count: int) -> "Subject":
        """The same with so many samples, and with all that was found out about the model."""
        self.traced_model  # noqa: B018  (both have the same copies of the model)
        self.shape  # noqa: B018
        other = copy.copy(self)
        other._samples = count
        return other

    def samples(self) -> int:
        """How many samples the batch has."""
        if self._samples is not None:
            return self._samples
        return self._given_samples()

    def _given_samples(self) -> int:
        leaves = (leaf for leaf in tree_leaves(self.sample) if isinstance(leaf, Tensor))
        first = next((leaf for leaf in leaves if leaf.ndim), None)
        return 1 if first is None else int(first.shape[0])

    def once(self, key: Hashable, found: Callable[[], _Found]) -> _Found:
        """What somebody finds out about the model, which is kept for all plans."""
        if key not in self.kept:
            self.kept[key] = found()
        known: _Found = self.kept[key]
        return known

    def parameters(self) -> Pieces:
        """All parameters of the model."""
        if self.model is None:
            return {}
        return self.once("parameters", self._parameters)

    def _parameters(self) -> Pieces:
        return {name: _piece(p, trained=p.requires_grad) for name, p in self._named_parameters()}

    def buffers(self) -> Pieces:
        """All buffers of the model."""
        if self.model is None:
            return {}
        named = self.model.named_buffers()
        return self.once("buffers", lambda: {name: _piece(b, trained=False) for name, b in named})

    def rule(self) -> OptimizerSpec | None:
        """The optimizer by the names of its parameters."""
        if self.optimizer is None or self.model is None:
            return None
        return self.once("rule", self._rule)

    def _rule(self) -> OptimizerSpec:
        assert self.optimizer is not None
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._named_parameters()}
        return OptimizerSpec.describe(self.optimizer, names)

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        assert self.model is not None
        return list(self.model.named_parameters())

    def trace(self, run: Run) -> "Trace":
        """What the forward of one micro-batch does.

        Raises:
            PlanError: it cannot be followed without numbers.
        """
        size = self.samples() // run.micro_batches
        key = run.key, size
        if key not in self._traces:
            try:
                self._traces[key] = self._traced(run, size)
            except Exception as error:  # whatever the user's forward raises: it is told
                self._traces[key] = error
        found = self._traces[key]
        if isinstance(found, Exception):
            if isinstance(found, PlanError):
                raise found
            said = " ".join(str(found).split())[:200]
            raise PlanError(
                f"the forward cannot be followed without numbers: {type(found).__name__}: {said}"
            ) from found
        return found

    def _traced(self, run: Run, size: int) -> "Trace":
        if self._samples is None or size <= max(SMALL) or self.clock is not None:
            return self._followed(run, size)
        small, larger = (self.with_samples(n * run.micro_batches).trace(run) for n in SMALL)
        if small.is_like(larger):
            return small.grown(larger, (size - SMALL[0]) / (SMALL[1] - SMALL[0]))
        return self._followed(run, size)

    def _followed(self, run: Run, size: int) -> "Trace":
        model, fakes = self.traced_model, self._fakes
        assert fakes is not None
        batch = tree_map(_sized(self._given_samples(), size), (self.sample, self.targets))
        forward = run.forward or _called
        return fakes.trace(
            model,
            fakes.of(batch),
            forward=_changed(forward, run),
            contexts=run.contexts,
            criterion=self.criterion,
        )


def _called(model: nn.Module, inputs: Any, tracing: "Tracing") -> Any:
    args, kwargs = arguments(model, inputs)
    return model(*args, **kwargs)


def _changed(forward: "Forward", run: Run) -> "Forward":
    """With what strategies put around the model's own forward, for the time of the trace."""

    def called(model: nn.Module, inputs: Any, tracing: "Tracing") -> Any:
        before = vars(model).get("forward")
        try:
            for change in run.changes:
                vars(model)["forward"] = change(model.forward)
            return forward(model, inputs, tracing)
        finally:
            vars(model).pop("forward", None)
            if before is not None:
                vars(model)["forward"] = before

    return called


def _copy(model: nn.Module, change: Callable[[Tensor], Any]) -> nn.Module:
    """The model with other tensors, tied ones tied; none of its memory is copied."""
    tensors = (*model.parameters(), *model.buffers())
    try:
        return copy.deepcopy(model, {id(tensor): change(tensor) for tensor in tensors})
    except Exception as error:
        raise PlanError(
            f"the {type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and "
            "what its forward keeps is counted on a copy without numbers; make the model "
            "copyable, or leave out the sample."
        ) from error


def _on_meta(tensor: Tensor) -> Tensor:
    made = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _sized(before: int, size: int) -> Callable[[Any], Any]:
    """Gives tensors of samples so many of them; what is not cut by samples stays as it is."""
    made: dict[int, Tensor] = {}  # what was one tensor stays one

    def leaf(value: Any) -> Any:
        is_cut = isinstance(value, Tensor) and value.ndim and value.shape[0] == before
        if not is_cut or size == before:
            return value
        if id(value) not in made:
            shape = size, *value.shape[1:]
            made[id(value)] = torch.empty(shape, dtype=value.dtype, device="meta")
        return made[id(value)]

    return leaf


def _piece(tensor: Tensor, *, trained: bool) -> Piece:
    return Piece(tuple(tensor.shape), tensor.dtype, trained)
