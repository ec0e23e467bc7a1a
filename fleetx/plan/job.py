"""What a strategy may look at: the job, never another strategy."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from fleetx.plan.all_or_none import all_or_none
from fleetx.plan.recorded import Recorded
from fleetx.plan.step import Step
from fleetx.plan.unmade import Unmade
from fleetx.roles.messages import broadcast_json
from fleetx.torch_internals import parameters_of

T = TypeVar("T")
Forward = Callable[..., Any]
Change = Callable[[Forward], Forward]
_ELSEWHERE = (
    "the update is not possible in another pipeline, with which this one exchanges gradients, so "
    "all of them stop; the workers of that one say why."
)


@dataclass(kw_only=True)
class Job:
    """The devices, the model and the optimizer that a plan is folded over."""

    device: torch.device
    mesh: DeviceMesh
    model: nn.Module
    """The user's module; strategies may change how it runs, never the names of its parameters."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the whole job, by name; a strategy lists those it obeys in its contract."""

    contexts: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)
    """What every forward of the model runs under, its replay in the backward pass included."""

    wire: torch.dtype | None = None
    """The number format in which gradients travel; None is their own. Whoever reduces obeys it."""

    elsewhere: set[nn.Module] = field(default_factory=set)
    """Submodules that run on other ranks: their names are known here, their weights are not."""

    opened: set[nn.Module] = field(default_factory=set)
    """Submodules whose own forward never runs, because what is inside was dealt out to ranks."""

    whole: set[nn.Module] = field(default_factory=set)
    """Submodules that run as one piece of code, which whatever acts on calls inside would tear."""

    surround: list[Callable[[nn.Module], Change]] = field(default_factory=list)
    """What must be around each submodule that is translated, and cannot be a part of its code: for
    the submodule, what becomes of its forward. Whoever translates puts them around."""

    translators: list[Change] = field(default_factory=list)
    """What becomes of code that runs a part of the model's forward by itself."""

    recordable: list[Callable[[], bool]] = field(default_factory=list)
    """Asked before a step is recorded to run without the host: False from who works with the host
    in the coming one, but not in each."""

    around_recorded: list[Callable[[], AbstractContextManager[None]]] = field(default_factory=list)
    """What the host does before and after a step that runs without it, its recording included: in
    place of what it does around each forward of a step that it leads."""

    recorded: Recorded | None = None
    """The step that is being recorded now; None while the host runs each step itself."""

    replaced: int = 0
    """Counted up by who puts something of its own elsewhere that recorded steps work on; they are
    recorded anew then."""

    borrowed: set[str] = field(default_factory=set)
    """Names of parameters that another rank holds, too, and counts as its own."""

    step: Step | None = None
    """The finished step, for verbs that must see what strategies of later phases made of another;
    None while the plan is being folded."""

    criterion: Callable[[Any, Any], Tensor] | None = None
    """Outputs and targets -> loss, for batches that are given as a whole."""

    compiled_criterion: bool = False
    """Whether that is, or becomes, code that nobody can look into while it runs."""

    keep_outputs: bool = False
    """Whether somebody wants the outputs of the batches that train, which take memory."""

    sample: Any = None
    """Inputs of one small batch, for strategies that look at shapes or measure."""

    optimizer: Optimizer | None = None

    unmade: Unmade | None = None
    """What of a model that came without numbers is to be made; None of any other model."""

    owners: dict[str, type[nn.Module]] = field(init=False, default_factory=dict)
    """Every parameter of the whole model by its first name -> the kind of module that has it."""

    _first: dict[str, str] = field(init=False, default_factory=dict)
    """Every name of a parameter of the whole model -> its first one."""

    def __post_init__(self) -> None:
        seen: dict[int, str] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            for name, parameter in parameters_of(module).items():
                if parameter is not None:
                    full = f"{path}.{name}" if path else name
                    first = self._first[full] = seen.setdefault(id(parameter), full)
                    self.owners.setdefault(first, type(module))

    def held(self) -> set[str]:
        """The first names of the parameters of the model that this rank holds."""
        named = self.model.named_parameters(remove_duplicate=False)
        return {self._first.get(name, name) for name, _ in named}

    def place(self, model: nn.Module) -> nn.Module:
        """Bring a model to the device; one that came without numbers gets this rank's share."""
        if self.unmade is None:
            return model.to(self.device)
        self.unmade.place(model, self.device)
        return model

    def brought(self, names: Iterable[str]) -> None:
        """Somebody loaded these tensors of the model, which then need nobody to make them."""
        if self.unmade is not None:
            self.unmade.given(names)

    def together(self, action: Callable[[], T]) -> T:
        """Do what every rank of the mesh does now; where it raises on one, it raises on all."""
        return all_or_none(action) if self.mesh.size() > 1 else action()

    def of_all_stages(self, fact: Any) -> list[Any]:
        """What each stage of the pipeline has to say, as JSON; every rank must call it.

        What one stage does not have, another may: a check of the whole model asks all of them, and
        then all of them find the same.
        """
        if self.size("pp") == 1:
            return [fact]
        group, stages = self.mesh["pp"].get_group(), range(self.size("pp"))
        return [
            broadcast_json(fact, source=stage, group=group, device=self.device) for stage in stages
        ]

    def anywhere(self, fact: bool) -> bool:
        """Whether it is so on any of the ranks that update together, which must all ask."""
        assert self.step is not None, "nobody asks before the plan is folded"
        return bool(self.step.agree(torch.tensor(float(fact), device=self.device)))

    def hindrance(self, own: str) -> str:
        """What is wrong with an update here, or else on another rank; every rank must call it.

        Stages hold different parameters, so one of them may find what the others do not. Ranks
        without a pipeline keep what they found themselves, which costs no exchange.
        """
        if self.size("pp") == 1:
            return own
        if not self.anywhere(bool(own)):
            return ""
        said = [text for text in self.of_all_stages(own) if text]
        return own or (said[0] if said else _ELSEWHERE)

    def translated(self, code: Forward) -> Forward:
        """Code of a part of the model, as it runs; asked for when the plan is folded."""
        for change in self.translators:
            code = change(code)
        return code

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis."""
        return self.mesh.size((self.mesh.mesh_dim_names or ()).index(axis))  # no mesh of its own

    def call(self, inputs: Any) -> Any:
        """The model's outputs for the inputs of a batch."""
        args, kwargs = arguments(self.model, inputs)
        return self.model(*args, **kwargs)

    def own_parameters(self) -> list[nn.Parameter]:
        """The parameters that this rank counts where ranks add up what each of them holds."""
        named = self.model.named_parameters()
        return [parameter for name, parameter in named if name not in self.borrowed]

    def option(self, name: str, kind: type[T]) -> T:
        """One option of the whole job, of a known type."""
        value = self.options[name]
        assert isinstance(value, kind), f"{name} is {value!r}, not a {kind.__name__}"
        return value


def arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with the inputs of a batch.

    A tuple is several arguments; so is a list, into which loaders make tuples, unless the model's
    forward can take the list itself. A dict is arguments by their names, unless the forward does
    not know these names and wants the dict itself.
    """
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, list) and not _takes(model, inputs) and _takes(model, *inputs):
        return tuple(inputs), {}
    if isinstance(inputs, dict):
        known = inspect.signature(type(model).forward).parameters
        if all(name in known for name in inputs) or _takes(model, **inputs):
            return (), inputs
    return (inputs,), {}


def _takes(model: nn.Module, /, *args: Any, **kwargs: Any) -> bool:
    """Whether the model's forward can be called like this."""
    try:
        inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    except TypeError:
        return False
    return True
