"""``CompiledProgram``: a program with options about how it is run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fleetx import roles
from fleetx.config.block import BuildStrategy, ExecutionStrategy
from fleetx.record.error import ProgramError
from fleetx.static.record.program import Program
from fleetx.static.run.executions import has_run


class CompiledProgram:
    """What ``Executor.run`` takes instead of the program itself."""

    def __init__(self, program: Program, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program, Program):
            raise TypeError(f"static.CompiledProgram() takes a static.Program, got {program!r}")
        self.program = program
        self._build: Mapping[str, Any] = _options(build_strategy, BuildStrategy)
        self._execution: Mapping[str, Any] = {}

    def with_data_parallel(
        self,
        loss_name: Tensor | str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
    ) -> "CompiledProgram":
        """The same; on several cards, there is one process for each.

        Args:
            loss_name: the loss that is minimised, which must be the program's.
            build_strategy: how the program is rewritten.
            exec_strategy: how it is run.
        """
        if not roles.started() and torch.cuda.device_count() > 1:
            raise ProgramError(
                f"with_data_parallel() would use {torch.cuda.device_count()} cards in one process, "
                "but each has a process of its own here; start the script with fleetrun, and wrap "
                "the optimizer with fleet.distributed_optimizer()."
            )
        if loss_name is not None:
            self.program.find(loss_name)
        self._build = {**self._build, **_options(build_strategy, BuildStrategy)}
        self._execution = _options(exec_strategy, ExecutionStrategy)
        return self

    def prepared(self) -> Program:
        """The program, told about its options before its first run."""
        wanted = self._build, self._execution
        if self.program.build is None and not has_run(self.program):
            self.program.build = wanted
        if (self.program.build or ({}, {})) != wanted:
            raise ProgramError(
                "the program ran with other options already, so these would come too late; make "
                "the CompiledProgram before the first run, and run that alone."
            )
        return self.program


def _options(given: object, kind: type[BuildStrategy | ExecutionStrategy]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, kind):
        raise TypeError(f"a {kind.__name__} is expected, got {given!r}")
    return given.explicit()
