"""What machines can do: arithmetic, memory and links, measured or written down in YAML."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

from fleetx.near_names import did_you_mean
from fleetx.plan.error import PlanError

GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way between ranks, as one rank sees it."""

    gigabytes_per_second: float
    """What a rank sends while others send, too."""
    microseconds: float
    """What the smallest message takes."""
    busy: float = 0.0
    """What part of the time an exchange takes from computing, because the same cores do both."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Collective -> gigabytes that a rank sends in a second, where it is not as for all-reduce."""
    latencies: Mapping[str, float] = field(default_factory=dict)
    """Collective -> microseconds of its smallest message, where they are not as for all-reduce."""

    def seconds(self, size: float, messages: float, collective: str = "all-reduce") -> float:
        """Of so many bytes in so many messages, one after the other."""
        rate = self.rates.get(collective, self.gigabytes_per_second) * GIGA
        return size / rate + messages * self.latencies.get(collective, self.microseconds) * 1e-6


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one worker computes with."""

    kind: str
    """As torch names it: cuda or cpu."""
    memory_gigabytes: float
    """What a worker may fill."""
    teraflops: Mapping[str, float]
    """Kind of operator and bits of its numbers, such as ``product 16`` -> operations in a second,
    in 10^12."""
    memory_gigabytes_per_second: float
    microseconds_per_kernel: float
    """What the host takes to start one."""
    microseconds_per_gradient: float = 0.0
    """What the host takes for one operator of a backward; 0: as long as for one of a forward."""
    microseconds_per_module: float = 0.0
    """What Python takes to call a submodule, besides the operators inside."""
    microseconds_per_replay: float = 0.0
    """What a checkpoint of torch takes for a tensor that it lets go and computes once more, besides
    the operators that run again."""
    microseconds_per_segment: float = 0.0
    """What it takes for each module that it replays, besides."""
    microseconds_per_dispatch: float = 0.0
    """What the host takes for an operator on a DTensor, besides what it takes on a tensor."""
    host_gigabytes_per_second: float = 0.0
    """To the memory of the host, where what is offloaded waits; 0: it is the same memory."""
    threads: int = 0
    """With how many of them a worker computes on a CPU; 0: nobody looked."""
    crowding: float = 1.0
    """How much longer an operator takes while all workers of the machine compute than while one
    does; more than 1 where they share cores. All other figures are those of a full machine."""
    chores: Mapping[str, float] = field(default_factory=dict)
    """What strategies make the host do besides (`Pace.chores`) -> microseconds of each time; none
    where nobody measured."""

    def rate(self, kind: str, bits: int) -> float:
        """Operations in a second.

        A kind that is not known is as fast as a product, and fewer bits as those that are known.
        """
        narrow = min(bits, 32)
        wider = ("product 16",) if narrow < 16 else ()
        for name in (f"{kind} {narrow}", f"product {narrow}", *wider, "product 32"):
            if name in self.teraflops:
                return self.teraflops[name] * 1e12
        raise AssertionError("a cluster has product 32")

    @property
    def runs_ahead(self) -> bool:
        """Whether the host goes on while a kernel runs."""
        return self.kind != "cpu"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal machines with equal devices."""

    nodes: int
    devices_per_node: int
    device: Device
    inside: Link
    """Between devices of a machine."""
    outside: Link
    """Between machines, for one device while all others send, too."""
    name: str = ""

    @property
    def workers(self) -> int:
        """One for each device."""
        return self.nodes * self.devices_per_node

    def link(self, ranks: int, stride: int) -> Link:
        """The slowest way between so many ranks whose numbers are `stride` apart."""
        span = (ranks - 1) * stride + 1
        return self.inside if span <= self.devices_per_node else self.outside

    def save(self, path: Path) -> None:
        """Write it down so that `load` reads it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_yaml().safe_dump(asdict(self), sort_keys=False))


def load(path: str | Path) -> Cluster:
    """A cluster that was written down.

    Raises:
        PlanError: something is missing, unknown or absurd; it says what.
    """
    source = Path(path)
    try:
        text = source.read_text()
    except OSError as error:
        raise PlanError(
            f"the cluster file {source} cannot be read ({error.strerror}); give one that exists, "
            "or let `fleetx cluster probe` write one."
        ) from error
    yaml = _yaml()
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise PlanError(f"the cluster file {source} is not YAML: {said}.") from error
    return read(found, f"the cluster file {source}")


def read(found: Any, source: str) -> Cluster:
    """A cluster from plain values, every one of them checked.

    Args:
        found: as `dataclasses.asdict` makes them of a cluster.
        source: what is named in complaints.
    """
    made: Cluster = _read(Cluster, found, source, "")
    return made


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise PlanError(
            "cluster files are YAML, and no package here reads it; pip install 'fleetx[auto]'."
        ) from error
    return yaml


def _read(kind: type[Any], found: Any, source: str, at: str) -> Any:
    """An object of the class, every number of it checked."""
    where = f"{source}, {at}:" if at else f"{source}:"
    if not isinstance(found, Mapping):
        raise PlanError(f"{where} expected keys and values, got {found!r}.")
    types = get_type_hints(kind)
    known = {one.name: one for one in fields(kind)}
    for key in found:
        if key not in known:
            raise PlanError(f"{where} there is no {key!r}; {did_you_mean(str(key), known)}")
    required = {one.name for one in _required(kind)}
    if missing := sorted(required - found.keys()):
        raise PlanError(f"{where} {', '.join(missing)} {_is(missing)} missing; say how much it is.")
    values = {
        key: _value(types[key], value, source, f"{at}.{key}".strip("."))
        for key, value in found.items()
    }
    return kind(**values)


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _required(kind: type[Any]) -> Iterator[Any]:
    for one in fields(kind):
        if one.default is MISSING and one.default_factory is MISSING:
            yield one


def _value(expected: Any, value: Any, source: str, at: str) -> Any:
    if isinstance(expected, type) and expected in (Link, Device):
        return _read(expected, value, source, at)
    if expected in (str, bool):
        if not isinstance(value, expected):
            raise PlanError(f"{source}: {at} = {value!r} is no {expected.__name__}.")
        return value
    if expected in (int, float):
        return _number(expected, value, source, at)
    return _named_numbers(value, source, at)


def _named_numbers(value: Any, source: str, at: str) -> dict[str, float]:
    is_device = at.endswith("teraflops")
    if not isinstance(value, Mapping) and not is_device:
        raise PlanError(f"{source}: {at} = {value!r} must be names with a number each.")
    if is_device and (not isinstance(value, Mapping) or "product 32" not in value):
        raise PlanError(
            f"{source}: {at} must say at least what 'product 32' reaches, and better what "
            f"'product 16' and 'convolution 16' do, in 10^12 operations a second; got {value!r}."
        )
    return {str(key): _number(float, rate, source, f"{at}.{key}") for key, rate in value.items()}


def _number(expected: type[int] | type[float], value: Any, source: str, at: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or (expected is int and value != int(value)):
        kind = "whole number" if expected is int else "number"
        raise PlanError(f"{source}: {at} = {value!r} is no {kind}.")
    low, high = next(LIMITS[name] for name in reversed(at.split(".")) if name in LIMITS)
    if not low <= value <= high:
        raise PlanError(
            f"{source}: {at} = {value:g} is absurd: between {low:g} and {high:g} is possible."
        )
    return expected(value)


LIMITS: dict[str, tuple[float, float]] = {
    "nodes": (1, 1e6),
    "devices_per_node": (1, 4096),
    "memory_gigabytes": (1e-3, 1e5),
    "teraflops": (1e-6, 1e5),
    "memory_gigabytes_per_second": (1e-3, 1e6),
    "microseconds_per_kernel": (0, 1e6),
    "microseconds_per_gradient": (0, 1e6),
    "microseconds_per_module": (0, 1e6),
    "microseconds_per_replay": (0, 1e7),
    "microseconds_per_segment": (0, 1e7),
    "microseconds_per_dispatch": (0, 1e6),
    "host_gigabytes_per_second": (0, 1e6),
    "threads": (0, 4096),
    "crowding": (1, 4096),
    "gigabytes_per_second": (1e-6, 1e5),
    "microseconds": (0, 1e8),
    "busy": (0, 1),
    "rates": (1e-6, 1e5),
    "latencies": (0, 1e8),
    "chores": (0, 1e7),
}
"""Name -> between which numbers every machine lies."""
