"""Numbers of an optimizer's groups: those that a run has changed are its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Groups = Sequence[dict[str, Any]]


class MovedNumbers:
    """Remembers the numbers that a script gave, and finds those that were changed since.

    Schedules move more than learning rates (``OneCycleLR`` moves momentum and betas, others the
    decay of weights), and many scripts move numbers by hand. Learning rates that a schedule of
    torch leads are left to it: a script may go on with another one.

    Args:
        groups: of the optimizer, as they were given.
    """

    def __init__(self, groups: Groups) -> None:
        self._given = [dict(_plain(group)) for group in groups]

    def of(self, groups: Groups) -> list[dict[str, Any]]:
        """What was changed in each group."""
        return [
            {name: value for name, value in _plain(group) if known.get(name, value) != value}
            for group, known in zip(groups, self._given, strict=True)
        ]


def put_back(groups: Groups, moved: Sequence[Mapping[str, Any]]) -> None:
    """Change the same again in a run that goes on."""
    if any(moved) and len(moved) != len(groups):
        raise ValueError(
            f"the checkpoint has numbers of {len(moved)} groups of the optimizer that its run had "
            f"changed, and the optimizer here has {len(groups)}; give it the groups that it had."
        )
    for group, kept in zip(groups, moved, strict=False):
        for name in kept.keys() & dict(_plain(group)).keys():
            value = kept[name]
            group[name] = tuple(value) if isinstance(value, list) else value


def _plain(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if name == "params" or (name == "lr" and "initial_lr" in group):
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        if all(isinstance(number, int | float) for number in numbers):
            yield name, value
