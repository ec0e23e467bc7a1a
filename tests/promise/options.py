"""Every attribute and every key of ``DistributedStrategy``, and another legal value of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleetx.config.job_options import JobOptions
from fleetx.config.switchboard import blocks, switches
from fleetx.plan.option import OneOf, annotations, check, default, plain_type


@dataclass(frozen=True)
class Option:
    """One thing that a user can set."""

    block: str
    """Where it lies: ``amp_configs``, …; empty for an attribute of the strategy itself."""
    key: str
    annotation: Any
    normal: Any

    @property
    def name(self) -> str:
        return f"{self.block}.{self.key}" if self.block else self.key

    @property
    def switch(self) -> str | None:
        """What must be on for it to act; None for an option of the whole job."""
        name = self.block.removesuffix("_configs")
        return name if name in switches() else None

    def settings(self, value: Any) -> dict[str, Any]:
        """What to assign to which attribute."""
        return {self.block: {self.key: value}} if self.block else {self.key: value}

    def other(self) -> Any:
        """A legal value that is not the default; strings and lists have none by nature."""
        return next(value for value in self._candidates() if self._fits(value))

    def _candidates(self) -> Iterator[Any]:
        limits = getattr(self.annotation, "__metadata__", ())
        words = [word for limit in limits if isinstance(limit, OneOf) for word in limit.words]
        if words:
            yield from words
        elif plain_type(self.annotation) is bool:
            yield not self.normal
        elif plain_type(self.annotation) in (int, float):
            yield from (self.normal + 1, self.normal * 2, self.normal / 2, self.normal - 1)

    def _fits(self, value: Any) -> bool:
        try:
            return bool(check(self.name, self.annotation, value) != self.normal)
        except (TypeError, ValueError):
            return False


def every() -> dict[str, Option]:
    """All of them by name, from the registry of strategies and the options of the whole job."""
    found = [Option("", name, bool, False) for name in switches()]
    found += [
        Option("", name, kind, default(JobOptions, name))
        for name, kind in annotations(JobOptions).items()
    ]
    for block, config in blocks().items():
        known = annotations(config).items()
        found += [Option(block, key, kind, default(config, key)) for key, kind in known]
    return {option.name: option for option in found}
