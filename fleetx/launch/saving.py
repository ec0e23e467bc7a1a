"""Scripts that save themselves: how often, and how long they may take when they are to stop."""

from dataclasses import dataclass

from fleetx.roles import leaving


@dataclass(frozen=True)
class Saving:
    """What whoever starts a job asks of a script with a ``fleet.CheckpointManager``."""

    seconds: float | None = None
    """Between two checkpoints; None leaves it to the script."""
    grace: float = 25.0
    """Seconds for the last one, after SIGTERM."""

    def variables(self) -> dict[str, str]:
        """What a worker must know."""
        return {} if self.seconds is None else {leaving.SECONDS: f"{self.seconds:g}"}
