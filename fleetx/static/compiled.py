"""``CompiledProgram``."""

from fleetx.static.program import Program


class CompiledProgram:
    def __init__(self, program: Program) -> None:
        self.program = program

    def prepared(self) -> Program:
        return self.program
