"""Programs of a job: ``fleet.minimize``, ``fleet.main_program`` and their like."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fleetx import roles
from fleetx.api import session
from fleetx.api.grad_clip import GradClip
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.engine.engine import Engine
from fleetx.plan.error import PlanError
from fleetx.plan.strategy import Plan
from fleetx.record.splitting import numbered_by_device
from fleetx.record.variable import as_variable
from fleetx.static.lower.build_options import OBEYED
from fleetx.static.lower.cuts import matching
from fleetx.static.lower.stages import check_order
from fleetx.static.record.current import default_startup_program
from fleetx.static.record.program import Program, program_of
from fleetx.static.run.executions import executions
from fleetx.static.run.minimize import minimize as minimize_program
from fleetx.static.run.optimizer_options import OptimizerOptions
from fleetx.static.run.single_worker import without_exchange
from fleetx.static.run.training import Training, training_of
from fleetx.static.run.training_run import running


@dataclass(frozen=True)
class Programs:
    """What the last ``minimize`` of the job made."""

    main: Program
    startup: Program


class ProgramOptimizer:
    """What ``fleet.distributed_optimizer`` returns for a ``static.Optimizer``."""

    def __init__(self, optimizer: OptimizerOptions, grad_clip: GradClip | None) -> None:
        self._optimizer, self.grad_clip = optimizer, grad_clip
        self._training: Training | None = None

    def minimize(
        self,
        loss: Tensor,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Let every run of the loss's program be one update of all workers together."""
        options = {"parameter_list": parameter_list, "no_grad_set": no_grad_set}
        made = _planned(self._optimizer, loss, startup_program, grad_clip=self.grad_clip, **options)
        self._training = training_of(program_of(as_variable(loss, "minimize()")))
        return made

    def follow(self, training: Training) -> None:
        """Speak of another training, which has taken the place of the one that it began."""
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer and of the strategies; there is none before the first run."""
        return self._wrapper("state_dict").state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        self._wrapper("load_state_dict").load_state_dict(state)

    def _wrapper(self, call: str) -> DistributedOptimizer:
        wrapper = self._training.wrapper if self._training is not None else None
        if wrapper is None:
            raise RuntimeError(
                f"optimizer.{call}() was called before the first run of its program, when there is "
                "no optimizer yet; call minimize(loss) and Executor.run() first."
            )
        return wrapper


def minimize_by(
    loss: Tensor,
    optimizer: DistributedOptimizer,
    startup_program: Program | None = None,
    parameter_list: Any = None,
    no_grad_set: Any = None,
) -> Any:
    """``minimize`` of a distributed torch optimizer over parameters of a program."""
    return _planned(
        optimizer,
        loss,
        startup_program,
        parameter_list=parameter_list,
        no_grad_set=no_grad_set,
        wrapper=optimizer,
    )


def minimize(
    loss: Tensor,
    startup_program: Program | None = None,
    parameter_list: Any = None,
    no_grad_set: Any = None,
) -> Any:
    """``minimize`` of the optimizer that ``fleet.distributed_optimizer`` saw last."""
    optimizer = session.latest_optimizer("minimize")
    if optimizer is None:
        raise RuntimeError(
            "fleet.minimize(loss) was called without an optimizer; call "
            "fleet.distributed_optimizer(optimizer, strategy) first."
        )
    return optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)


def _planned(optimizer: Any, given: Tensor, startup: Program | None, **options: Any) -> Any:
    loss = as_variable(given, "minimize()")
    program = program_of(loss)
    numbers, devices = numbered_by_device(program.graph)
    plan = session.plan(obeyed=OBEYED, stages=len(devices))
    stages = plan.stages()
    if stages > 1:
        check_order(numbers, devices, loss.node)
        _check_stages(devices, stages, plan)
    for entry in plan.cuts():
        matching(program, entry)
    made = minimize_program(optimizer, loss, startup, plan=plan, **options)
    _begin_later(program)
    programs = Programs(program, startup or default_startup_program())
    session.current("minimize").programs = programs
    return made


def _check_stages(devices: Sequence[str], stages: int, plan: Plan) -> None:
    if len(devices) != stages:
        ranks = plan.mesh["pp"]
        raise PlanError(
            f"the program names {len(devices)} devices ({', '.join(devices)}), and a pipeline of "
            f"{ranks} ranks with {stages // ranks} on each runs {stages}; set "
            "hybrid_configs['pp_degree'] to the number of devices, or record the program under "
            f"{stages} of them with static.device_guard()."
        )


def main_program() -> Program:
    """The program that trains with all workers."""
    return _last("main_program").main


def startup_program() -> Program:
    """The program that initialises it."""
    return _last("startup_program").startup


def origin_program() -> Program:
    """The same training without any exchange: the worker moves its own parameters.

    It shares parameters and optimizer with ``main_program``; a loop that runs the two by turns
    decides itself when workers meet.
    """
    main = _last("_origin_program").main
    kept = executions(main)
    if kept.alone is None:
        training = training_of(main)
        assert training is not None
        assert training.plan is not None
        kept.alone = main.clone()
        kept.alone.objective = Training(
            training.loss,
            training.trained,
            training.optimizer,
            without_exchange(session.request(), training.plan),
            origin=main,
        )
    return kept.alone


def _begin_later(program: Program) -> None:
    """Let whoever needs all models of the job, and not only those that have run, begin it."""
    known = weakref.ref(program)

    def begin() -> Engine | None:
        found = known()
        if found is None or not all(layer.done for layer in found.layers.values()):
            return None
        return running(found, roles.device()).engine

    session.current("minimize").unbegun.append(begin)


def _last(name: str) -> Programs:
    found: Programs | None = session.current(name).programs
    if found is None:
        raise PlanError(
            f"fleet.{name} is there after minimize(); call fleet.distributed_optimizer(optimizer)"
            ".minimize(loss) first."
        )
    return found
