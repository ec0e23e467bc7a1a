"""What all models of FleetX 1 have."""

from typing import Any

from fleetx.compat import saving
from fleetx.compat.programs import default_main_program, default_startup_program
from fleetx.compat.running import Executor


class ModelBase:
    """A model in the default program: its inputs, loss, checkpoints and targets."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.loss: Any = None
        self.checkpoints: list[Any] = []
        self.target: dict[str, Any] = {}
        self.main_prog = default_main_program()
        self.startup_prog = default_startup_program()

    def get_loss(self) -> Any:
        """What is minimised."""
        return self.loss

    def parameter_list(self) -> list[str]:
        """The names of the parameters."""
        return [parameter.name for parameter in self.main_prog.all_parameters()]

    def startup_program(self) -> Any:
        """The program of first values."""
        return self.startup_prog

    def main_program(self) -> Any:
        """The program."""
        return self.main_prog

    def load_params(self, file_path: str) -> None:
        """Take parameters from Paddle's files."""
        saving.load_params(Executor(), file_path, self.main_prog)

    def save_params(self, target_path: str) -> None:
        """Write parameters to Paddle's files."""
        saving.save_params(Executor(), target_path, self.main_prog)
