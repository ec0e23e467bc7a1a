"""What a metric has counted, for checkpoints in the middle of an epoch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fleetx.expected import MAPPING, expect

_METRIC = "metric"
"""The key under which a state says of which metric it is."""
_STATE = MAPPING.such_as("a dict that state_dict() returned")


class Counting(ABC):
    """Has a state; those of several workers add up, so that fewer or more can go on with them."""

    @abstractmethod
    def reset(self) -> None:
        """Begin anew."""

    def state_dict(self) -> dict[str, Any]:
        """What this worker has counted."""
        return {_METRIC: self._told(), **self._kept()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called."""
        self.load_state_dicts([state])

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on for several workers at once, as after a restart with fewer; without any, anew."""
        for state in states:
            self._check(state)
        self.reset()
        for state in states:
            self._add(state)

    @abstractmethod
    def _kept(self) -> dict[str, Any]:
        """Tensors and numbers that say what was counted."""

    @abstractmethod
    def _add(self, kept: Mapping[str, Any]) -> None:
        """Count what a worker has counted."""

    def _told(self) -> str:
        """Which metric it is, with the options that decide what is counted."""
        return type(self).__name__

    def _check(self, state: Mapping[str, Any]) -> None:
        call = f"{type(self).__name__}.load_state_dict"
        expect(call, "state", state, _STATE)
        if (saved := state.get(_METRIC)) != self._told():
            whose = "of no metric" if saved is None else f"that of {saved}"
            raise ValueError(
                f"{call}() was given a state that is {whose}, and this is {self._told()}, which "
                "counts something else; load what the same metric returned from state_dict()."
            )
