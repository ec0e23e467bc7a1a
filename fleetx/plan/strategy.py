"""The base class of every strategy, their registry, and a plan: those that take part in a job."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import AT_UPDATE, Contract
from fleetx.plan.exchange import Exchange
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.pace import Pace
from fleetx.plan.run import Run
from fleetx.plan.share import Share
from fleetx.plan.step import Step
from fleetx.plan.subject import Subject

if TYPE_CHECKING:
    from fleetx.plan.job import Job

REGISTRY: dict[str, type["Strategy"]] = {}


class Strategy:
    """One way to change training: three transformations, each the identity by default.

    Subclassing registers: ``class Amp(Strategy, name="amp")`` is all it takes for ``strategy.amp``
    and ``strategy.amp_configs`` to exist. ``name=None`` keeps a common base out of the registry.
    """

    name: ClassVar[str]
    internal: ClassVar[bool] = False
    """True for the strategies that a plan adds by itself and that have no switch."""

    leaves_state: ClassVar[bool] = False
    """Whether what it keeps means nothing in another layout, where whole values can be loaded."""

    own: ClassVar[frozenset[str]] = frozenset()
    """Keys of its state under which each share of the data has tensors of its own, by names of
    parameters; together they are worth their mean."""

    drifts: ClassVar[bool] = False
    """Whether each share of the data has running statistics and an optimizer's state of its own."""

    contract: Contract
    config: Any

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """A strategy without options."""

    @override
    def __init_subclass__(cls, *, name: str | None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is None:
            return
        if name in REGISTRY:
            raise ValueError(f"strategy {name!r} is registered by {REGISTRY[name]} and by {cls}")
        cls.name = name
        if "Config" in vars(cls):
            cls.Config.label = f"{name}_configs"
        REGISTRY[name] = cls

    def __init__(self, **options: Any) -> None:
        self.config = self.Config(**options)

    def examine(self, plan: "Plan") -> None:
        """Refuse, with ``PlanError``, what cannot be in force on this mesh or in this company."""

    def rests(self) -> Mapping[str, str]:
        """Flags of it that are on and have nothing to do, as they are set -> why."""
        return {}

    def alone(self) -> str:
        """What is left of a strategy that acts between workers in a job of one, if anything is."""
        return ""

    def cuts(self) -> tuple[str, ...]:
        """Names at which a static program must be split before ``model`` is called."""
        return ()

    def stages(self, plan: "Plan") -> int:
        """Into how many stages a static program must be split, by the devices that it names."""
        return 1

    def laying_out(self, device: torch.device) -> AbstractContextManager[None]:
        """What all strategies change models, optimizers and steps under."""
        return nullcontext()

    def model(self, model: nn.Module, job: "Job") -> nn.Module:
        """Change how the model is laid out or runs; keep the names of its parameters."""
        return model

    def optimizer(self, spec: OptimizerSpec, job: "Job") -> OptimizerSpec:
        """Change the update rule."""
        return spec

    def step(self, step: Step, job: "Job") -> Step:
        """Change verbs of the step."""
        return step

    def running(self, run: Run, subject: Subject, mesh: Mapping[str, int]) -> Run:
        """Change how the forward of a batch runs, for whoever traces it before the run.

        Whoever changes something adds to its key what decided it.
        """
        return run

    def share(self, share: Share) -> Share:
        """Change what one rank holds, as ``model``, ``optimizer`` and ``step`` will."""
        return share

    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        """What a rank sends, given what the strategies of later phases make it send."""
        return known

    def pace(self, pace: Pace, share: Share) -> Pace:
        """Change how long a rank takes for what it computes."""
        return pace

    @classmethod
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        """Options with which `strategy.auto` may switch it on by itself; never if there are none.

        Only what leaves the mathematics of the optimizer as it is belongs here.

        Args:
            subject: the model, its optimizer and one worker's batch.
            ranks: along the axis of the strategy, 1 if it has none.
        """
        return ()

    def batch(self) -> Mapping[str, int]:
        """What is known about batches: ``micro_batch``, ``micro_batches`` or ``batches``."""
        return {}

    def remarks(self) -> tuple[str, ...]:
        """What else a person should know before the run, with the option that decided it."""
        return ()

    def found(self, subject: Subject) -> tuple[str, ...]:
        """What of a model it acts on, in words.

        Raises:
            PlanError: there is nothing for it.
        """
        return ()

    def measures(self) -> Mapping[str, float | Tensor]:
        """Numbers of the run for trackers, by name; tensors stay where they are until one asks."""
        return {}

    def leaves_out_overflow(self) -> bool:
        """Whether it skips an update whose gradients are not finite, and expects some of those."""
        return False

    def waiting(self) -> bool:
        """Whether gradients of earlier batches wait for an update to come."""
        return False

    def in_step(self) -> bool:
        """Whether the replicas are equal now, as far as this strategy knows."""
        return True

    def at_update(self, job: "Job") -> tuple[str, ...]:
        """What it does or checks at an update alone, in the user's words.

        All of it is lost with an optimizer that is stepped past the plan.
        """
        named = self.name if self.internal else f"strategy.{self.name}"
        return (named,) if self.contract.touches & AT_UPDATE else ()

    def layout(self) -> Any:
        """Where the model was cut over ranks, in plain values; None if it was not.

        It must be cut there again where the state of an optimizer is loaded.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; nothing when a fresh start is the same."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Strategies in the order in which they are folded, and the mesh they live on."""

    strategies: tuple[Strategy, ...]
    mesh: Mapping[str, int]
    options: Mapping[str, Any]
    resting: Mapping[str, str] = field(default_factory=dict)
    """Flags that are on and have nothing to do in this job, as users spell them -> why; said when
    it starts."""

    @contextmanager
    def laying_out(self, device: torch.device) -> Iterator[None]:
        """What models, optimizers and steps are changed under, as the strategies say."""
        with ExitStack() as stack:
            for strategy in self.strategies:
                stack.enter_context(strategy.laying_out(device))
            yield

    def cuts(self) -> tuple[str, ...]:
        """Names at which a static program must be split before it is laid out."""
        return tuple(name for strategy in self.strategies for name in strategy.cuts())

    def stages(self) -> int:
        """Into how many stages a static program must be split, by the devices that it names."""
        return max(strategy.stages(self) for strategy in self.strategies)
