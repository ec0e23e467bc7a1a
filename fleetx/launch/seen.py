"""What the ranks of a job tell of themselves."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_KINDS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "alltoall": "all-to-all",
    "send": "transfer",
    "recv": "transfer",
    "isend": "transfer",
    "irecv": "transfer",
    "batch_isend_irecv": "transfer",
    "_wait_batch_p2p": "transfer",
}
_DECORATION = ("_base", "_into_tensor", "_tensor", "_single", "_coalesced", "_object")


@dataclass(frozen=True)
class Group:
    """A process group, as one of its ranks knows it."""

    called: str = ""
    ranks: tuple[int, ...] = ()
    made: int = 0
    """Collectives that the rank has begun in it."""
    open: int = 0
    """The number of the first one that is not over; 0 when all are."""
    pairs: int = 0
    """Exchanges between two ranks."""
    recent: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """The latest collectives by their numbers: kind, and shapes."""

    @staticmethod
    def of(told: Mapping[str, Any]) -> "Group":
        """From what a worker writes."""
        recent = {
            int(at): (kind_of(kind), str(sizes)) for at, kind, sizes in told.get("recent", ())
        }
        return Group(
            str(told.get("called", "")),
            tuple(told.get("ranks", ())),
            int(told.get("made", 0)),
            int(told.get("open", 0)),
            int(told.get("pairs", 0)),
            recent,
        )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one rank."""

    state: str = "running"
    """Or "ended", with code 0, or "failed"."""
    broken: bool = False
    """Whether it failed in an exchange."""
    still: float = 0.0
    """Seconds since it did anything new."""
    silent: float = 0.0
    """Seconds since it said anything; 0 as long as that is nothing to speak of."""
    asleep: str = ""
    """What the system says of a silent process."""
    warning: str = ""
    """What it wants the console to say."""
    doing: str = ""
    batches: int = 0
    """Those that have begun."""
    calls: int = 0
    """Calls of the model with gradients, or of ``train_batch``."""
    ended: int = 0
    """Batches that came to their end."""
    updates: int = 0
    """Those of them that moved the parameters."""
    meetings: int = 0
    meeting: str = ""
    place: str = ""
    waits: str = ""
    strategy: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    stack: tuple[str, ...] = ()

    @staticmethod
    def of(told: Mapping[str, Any], now: float) -> "Seen":
        """From what a worker of this machine wrote, by the machine's clock."""
        names = (
            "state",
            "broken",
            "warning",
            "doing",
            "batches",
            "calls",
            "ended",
            "updates",
            "meetings",
            "meeting",
            "place",
            "waits",
            "strategy",
        )
        return Seen(
            **{name: told[name] for name in names if name in told},
            still=now - float(told["still"]),
            silent=now - float(told["written"]),
            owners=told.get("owners", {}),
            notes=told.get("notes", {}),
            groups={name: Group.of(group) for name, group in told.get("groups", {}).items()},
            stack=tuple(told.get("stack", ())),
        )

    def group(self, name: str) -> Group:
        """A group of which the rank may not know yet."""
        return self.groups.get(name, Group())


@dataclass(frozen=True)
class Verdict:
    """Ranks that others wait for, in words."""

    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float
    """How long somebody has waited."""
    sentence: str


def named(ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 2, 3`."""
    listed = sorted(ranks)
    return f"rank{'s' * (len(listed) != 1)} {', '.join(map(str, listed))}"


def to_json(seen: Mapping[int, Seen]) -> str:
    """For the launcher of another machine."""
    return json.dumps({str(rank): _plain(each) for rank, each in seen.items()})


def from_json(text: str) -> dict[int, Seen]:
    """The inverse of `to_json`."""
    told: dict[str, dict[str, Any]] = json.loads(text)
    return {int(rank): _unplain(each) for rank, each in told.items()}


def _plain(seen: Seen) -> dict[str, Any]:
    values = dict(vars(seen))
    values["groups"] = {
        name: {**vars(g), "recent": [[at, *what] for at, what in g.recent.items()]}
        for name, g in seen.groups.items()
    }
    return values


def _unplain(told: dict[str, Any]) -> Seen:
    groups = {name: Group.of(group) for name, group in told["groups"].items()}
    return Seen(**told | {"groups": groups, "stack": tuple(told["stack"])})


def kind_of(function: str) -> str:
    """The plain name of a collective that torch has many names for."""
    plain = function.removeprefix("nccl:")
    if plain not in _KINDS:
        plain = plain.strip("_")
        for ending in _DECORATION:
            plain = plain.removesuffix(ending)
    return _KINDS.get(plain, plain.replace("_", "-"))
