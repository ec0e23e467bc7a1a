"""``minimize``: from a loss to a program that trains."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch import optim as torch_optim

from fleetx.api.grad_clip import GradClip
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.expected import a, expect
from fleetx.plan.strategy import Plan
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static.record.backward import GRADIENT, check_loss, trainable
from fleetx.static.record.current import default_startup_program
from fleetx.static.record.program import Program, program_of
from fleetx.static.run.optimizer_options import OptimizerOptions
from fleetx.static.run.training import Training

Entries = Iterable[Tensor | str]

_OPTIMIZER = a(
    OptimizerOptions | torch_optim.Optimizer,
    "static.Optimizer(torch.optim.SGD, lr=0.1), or a torch optimizer over the program's parameters",
)


def minimize(
    optimizer: OptimizerOptions | torch_optim.Optimizer,
    loss: Tensor,
    startup_program: Program | None = None,
    parameter_list: Entries | None = None,
    no_grad_set: Iterable[Tensor | str] | None = None,
    *,
    plan: Plan | None = None,
    wrapper: DistributedOptimizer | None = None,
    grad_clip: GradClip | None = None,
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Let every run of the loss's program end in an update by ``optimizer``.

    Args:
        optimizer: ``static.Optimizer(torch.optim.SGD, lr=0.1)``, or a torch optimizer over
            parameters of the program.
        loss: the variable to make small.
        startup_program: the one that initialises; None for the default one.
        parameter_list: train these alone; all that the loss depends on if None.
        no_grad_set: variables that gradients do not pass.
        plan: what strategies make of it.
        wrapper: what the user holds of a distributed optimizer.
        grad_clip: limits gradients before they are used.

    Returns:
        An empty list, for the place of the operators that Paddle returns, and the names of
        parameters with those of their gradients, which can be fetched.
    """
    expect("static.minimize", "optimizer", optimizer, _OPTIMIZER)
    loss = check_loss(loss)
    program = program_of(loss)
    if program.objective is not None:
        raise ProgramError(
            "minimize() was called on a program that has an optimizer already, and a run makes one "
            "update; clone the program before the first minimize() for a second optimizer."
        )
    if startup_program is not None and not isinstance(startup_program, Program):
        raise TypeError(f"startup_program is a static.Program, got {startup_program!r}")
    names = _trained(program, loss, optimizer, parameter_list, no_grad_set)
    training = Training(loss.name, names, optimizer, plan, wrapper, grad_clip)
    training.startup = weakref.ref(startup_program or default_startup_program())
    program.objective = training
    for initial in program.layers.values():
        initial.trainings.append(weakref.ref(training))
    program.changed()
    return [], [(name, f"{name}{GRADIENT}") for name in names]


def _trained(
    program: Program,
    loss: Variable,
    optimizer: OptimizerOptions | torch_optim.Optimizer,
    parameter_list: Entries | None,
    no_grad_set: Iterable[Tensor | str] | None,
) -> tuple[str, ...]:
    if parameter_list is None and isinstance(optimizer, torch_optim.Optimizer):
        parameter_list = [p for group in optimizer.param_groups for p in group["params"]]
    excluded = _stopped(program, no_grad_set)
    names = [n for n in trainable(program, loss.node, parameter_list) if n not in excluded]
    if not names:
        raise ProgramError(
            f"the loss {loss.name!r} depends on no parameter that may be trained, so minimize() "
            "would change nothing; look at parameter_list, no_grad_set and requires_grad."
        )
    return tuple(names)


def _stopped(program: Program, entries: Sequence[Any] | Iterable[Any] | None) -> set[str]:
    """Stop gradients at variables; return the names of parameters among them."""
    names: set[str] = set()
    for entry in entries or ():
        node = program.find(entry)
        if node.op == "get_attr":
            names.add(program.name_of(node))
        else:
            node.meta["stopped"] = True
    return names
