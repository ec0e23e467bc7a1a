"""The base of all learning rates that a script moves on with ``step()``."""

from collections.abc import Mapping
from typing import Any


class LRScheduler:
    """A learning rate that changes with each ``step()``; calling it gives the one in force."""

    def __init__(
        self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float):
            raise TypeError(f"a learning rate is a number, got {learning_rate!r}")
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = last_epoch, verbose
        self.step()

    def __call__(self, ticks: int | None = None) -> float:
        """The rate in force, however many runs there were."""
        return self.last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to the one that is named."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.last_lr = float(self.get_lr())
        if self.verbose:
            name = type(self).__name__
            print(f"Epoch {self.last_epoch}: {name} set learning rate to {self.last_lr}.")  # noqa: T201 (asked for)

    def get_lr(self) -> float:
        """The rate of ``last_epoch``; subclasses say it."""
        raise NotImplementedError

    def state_keys(self) -> None:
        """Say what ``state_dict`` holds; a script's own class may set ``self.keys``."""
        self.keys: list[str] = ["last_epoch", "last_lr"]

    def state_dict(self) -> dict[str, Any]:
        """What ``set_state_dict`` takes back."""
        self.state_keys()
        return {key: vars(self)[key] for key in self.keys if key in vars(self)}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another run ended."""
        self.state_keys()
        if missing := [key for key in self.keys if key in vars(self) and key not in state_dict]:
            raise RuntimeError(
                f"the state of a learning rate lacks {missing[0]!r}; pass what the state_dict() of "
                f"a {type(self).__name__} returned."
            )
        vars(self).update({key: state_dict[key] for key in self.keys if key in state_dict})

    set_dict = set_state_dict
