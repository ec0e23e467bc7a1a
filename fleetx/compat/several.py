"""Several ``minimize()`` calls on one program: each moves parameters of its own by its own loss.

A run still is one pass and one update, in which every optimizer makes its part. Gradients are those
of the values with which the losses were computed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from typing_extensions import override

from fleetx.api.grad_clip import GradClip
from fleetx.compat import routes
from fleetx.compat.after_updates import assigned_behind
from fleetx.compat.joint_rule import Joint
from fleetx.compat.notes import note
from fleetx.compat.optimizers import Optimizer
from fleetx.plan.strategy import Plan
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static.record.backward import GRADIENT, check_loss, trainable
from fleetx.static.record.program import Program, program_of
from fleetx.static.run.distributed import ProgramOptimizer
from fleetx.static.run.minimize import minimize
from fleetx.static.run.training import Training, training_of

Pairs = list[tuple[str, str]]

_NEVER = {
    *("pipeline", "sharding", "tensor_parallel", "parameter_server", "a_sync"),
    *("lars", "lamb", "dgc", "cuda_graph"),
}
"""Strategies that make one rule of the optimizer, or let others than the worker update."""
_ROUTED = {
    *("eager", "data_parallel", "clip", "amp", "gradient_merge", "fp16_allreduce"),
    *("localsgd", "adaptive_localsgd", "sync_batch_norm"),
}
"""Those under which gradients may be taken while the program still computes."""


@dataclass(frozen=True)
class Part:
    """One call of ``minimize()``."""

    optimizer: Optimizer
    loss: str
    names: tuple[str, ...]
    """The parameters that it moves."""
    stops: bool
    """Whether it named variables that gradients do not pass."""
    made: ProgramOptimizer | None
    """What a fleet made of the optimizer."""
    end: fx.Node
    """The last operator before it."""

    @property
    def clip(self) -> GradClip | None:
        """The limit of its gradients."""
        return self.optimizer.grad_clip


class _Parts(list[Part]):
    """Those of a program, in their order."""


class Several(Optimizer):
    """The optimizers of the parts as one, which the program is trained with."""

    def __init__(self, parts: Sequence[Part], names: Sequence[str]) -> None:
        first = parts[0].optimizer
        super().__init__(Joint, 0.0)
        self.parts, self.names = tuple(parts), tuple(names)
        self.schedule, self._learning_rate = first.schedule, first._learning_rate
        self.options = _common_options([part.optimizer for part in parts])
        kept = [part.optimizer.accumulators for part in parts]
        self.accumulators = {k: v for names in kept for k, v in names.items()}  # type: ignore[misc]

    @override
    def schedule_of(self, group: Mapping[str, Any]) -> Callable[[int], float] | None:
        part: Part = self.parts[group["part"]]
        return part.optimizer.schedule

    @override
    def build(self, parameters: Sequence[nn.Parameter], *, fused: bool = False) -> Any:
        """One rule for each part, over its own parameters."""
        known = dict(zip(self.names, parameters, strict=True))
        rules = [
            part.optimizer.build([known[name] for name in part.names], fused=fused)
            for part in self.parts
        ]
        made = Joint.of(rules, [part.clip for part in self.parts])
        made.register_step_post_hook(self._after)
        return made


def _common_options(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """What all were given alike, and the rate of the first, which speaks for the program."""
    first, *others = (dict(optimizer.options) for optimizer in optimizers)
    same = {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}
    return {**same, "lr": first.get("lr", 1e-3)}


def minimized(  # noqa: PLR0917 (the order of Paddle)
    optimizer: Optimizer,
    given: Any,
    startup: Any,
    parameter_list: Iterable[Any] | None,
    no_grad_set: Iterable[Any] | None,
    made: ProgramOptimizer | None = None,
) -> tuple[list[Any], Pairs]:
    """``minimize`` of an optimizer, the first of its program or not.

    Args:
        optimizer: the script's.
        given: the loss.
        startup: the start-up program that the script named.
        parameter_list: what moves; all that the loss depends on if None.
        no_grad_set: what gradients do not pass.
        made: what a fleet made of the optimizer.
    """
    loss = check_loss(given)
    program, before = program_of(loss), training_of(program_of(loss))
    parts: _Parts = program.attachments.get(_Parts, _Parts())
    part = _part(program, optimizer, loss, parameter_list, no_grad_set, made)
    if before is not None and (same := _same(parts, part)) is not None:
        if assigned_behind(program):
            same = None  # the refusal that follows is right
        else:
            note("minimize()", "it was called twice for one loss; a run ends in one update.")
            parts = _Parts(other for other in parts if other is not same)
            program.objective = None if not parts else before
    if before is None or not parts or program.objective is None:
        found = _alone(part, loss, startup, parameter_list, no_grad_set)
        program.attachments[_Parts] = _Parts([part])
        return found
    _join(program, _Parts([*parts, part]), before, startup)
    return [], [(name, f"{name}{GRADIENT}") for name in part.names]


def _part(  # noqa: PLR0917 (the order of Paddle)
    program: Program,
    optimizer: Optimizer,
    loss: Variable,
    parameter_list: Iterable[Any] | None,
    no_grad_set: Iterable[Any] | None,
    made: ProgramOptimizer | None,
) -> Part:
    left_out = [program.find(entry) for entry in no_grad_set or ()]
    fixed = {program.name_of(node) for node in left_out if node.op == "get_attr"}
    known = routes.reached(program, loss.node) - fixed
    listed = None if parameter_list is None else list(parameter_list)
    names = [n for n in trainable(program, loss.node, listed) if n in known]
    stops = any(node.op != "get_attr" for node in left_out)
    end = next(iter(reversed(program.graph.nodes)))
    return Part(optimizer, loss.name, tuple(names), stops, made, end)


def _same(parts: Sequence[Part], new: Part) -> Part | None:
    """The call that is made again: scripts do so, to train by the strategies of the last one."""
    found = (p for p in parts if p.optimizer is new.optimizer and p.loss == new.loss)
    return next((p for p in found if set(p.names) == set(new.names)), None)


def _alone(
    part: Part, loss: Variable, startup: Any, chosen: Any, no_grad_set: Any
) -> tuple[list[Any], Pairs]:
    if part.made is not None:
        found: tuple[list[Any], Pairs] = part.made.minimize(loss, startup, chosen, no_grad_set)
        return found
    return minimize(part.optimizer, loss, startup, chosen, no_grad_set, grad_clip=part.clip)


def _join(program: Program, parts: _Parts, before: Training, startup: Any) -> None:
    """Train the program by all parts together."""
    _check(program, parts)
    trained: dict[str, tuple[str, ...]] = {}
    for part in parts:
        trained[part.loss] = (*trained.get(part.loss, ()), *part.names)
    routed = len(trained) > 1 and not routes.apart(program, trained)
    moved = {name for names in trained.values() for name in names}
    order = [name for name in program.state.trained() if name in moved]
    several, loss = Several(parts, order), routes.objective(program, trained)
    fleet = parts[-1].made
    program.objective = None
    try:
        if fleet is not None:
            ProgramOptimizer(several, None).minimize(loss, startup, order)
        else:
            minimize(several, loss, startup, order)
        after = training_of(program)
        assert after is not None
        assert after.trained == tuple(order)
        _check_plans(before.plan, after.plan, routed)
    except Exception:
        program.objective = before
        raise
    program.attachments[_Parts] = parts
    for part in parts:
        if part.made is not None:
            part.made.follow(after)


def _check(program: Program, parts: Sequence[Part]) -> None:
    *earlier, new = parts
    if not new.names:
        raise ProgramError(
            f"the loss {new.loss!r} has no gradient by a parameter that may be trained, so this "
            "minimize() would change nothing; look at parameter_list, no_grad_set and "
            "stop_gradient."
        )
    if any(part.stops for part in parts):
        raise ProgramError(
            "no_grad_set names a variable, and this program has several minimize() calls, of which "
            "it would stop the gradients of all; set stop_gradient = True of the variable, or "
            "detach it where one loss uses it."
        )
    for part in earlier:
        if both := sorted(set(part.names) & set(new.names)):
            raise ProgramError(
                f"the program has an optimizer already that moves {both[0]!r}, for the loss "
                f"{part.loss!r}, and a run moves a parameter once; give each minimize() a "
                "parameter_list of its own, or minimize the sum of the losses once."
            )
        late = routes.read_behind(program, part.end, program.node(new.loss))
        if again := sorted(set(part.names) & late.keys()):
            raise ProgramError(
                f"{late[again[0]].name!r} was recorded behind the minimize() that moves "
                f"{again[0]!r} and would read the moved value, but all optimizers of a program "
                "move at the end of a run; record both losses before the first minimize(), or "
                "clone() the program before it and train the two programs by turns."
            )


def _check_plans(before: Plan | None, after: Plan | None, routed: bool) -> None:
    one, other = (
        [] if plan is None else [(s.name, s.config) for s in plan.strategies]
        for plan in (before, after)
    )
    if one != other:
        raise ProgramError(
            "two minimize() calls of one program ask for different strategies, and a run has one "
            "plan; give both optimizers to fleet.distributed_optimizer() with the same strategy, "
            "or neither."
        )
    on = dict(other)
    refused = sorted(_NEVER & on.keys() or (on.keys() - _ROUTED if routed else set()))
    if routed and not refused and "amp" in on and on["amp"].low == torch.float16:
        refused = ["amp in float16"]
    if refused:
        raise ProgramError(
            f"a program with several minimize() calls cannot train under {refused[0]}, which "
            "changes how one optimizer updates, or how one loss is differentiated; train it "
            f"without {refused[0]}, or minimize the sum of the losses once."
        )
