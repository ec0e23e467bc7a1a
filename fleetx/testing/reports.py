"""What the parent says when a rank fails, dies or hangs."""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fleetx.testing.fork_client import RankProcess
from fleetx.testing.rank import Reply

_AGREED = "__fleetx_agreed__"
_OUR_FRAMES = f'File "{Path(__file__).parent}'


def raise_first(replies: Mapping[int, Reply], ranks: Sequence[RankProcess]) -> NoReturn:
    """Raise what failed first in time; a failure goes before a skip."""
    failures = {rank: reply for rank, reply in replies.items() if reply.failed_at is not None}
    rank, first = min(
        failures.items(), key=lambda item: (_is_skip(item[1].error), item[1].failed_at)
    )
    error = first.error or RuntimeError(first.summary)
    if len(failures) == len(ranks) and all(_is_skip(reply.error) for reply in failures.values()):
        setattr(error, _AGREED, True)
    others = ", ".join(str(other) for other in sorted(failures) if other != rank)
    also = f" (ranks {others} failed later)" if others else ""
    error.add_note(f"raised on rank {rank} of {len(ranks)}{also}:\n{first.traceback}")
    if printed := outputs(ranks):
        error.add_note(printed)
    raise error


def raise_death(
    rank: int, ranks: Sequence[RankProcess], codes: Sequence[int], function: Callable[..., Any]
) -> NoReturn:
    """Raise that a process ended in the middle of a call."""
    code = codes[rank]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    error = RuntimeError(f"rank {rank} of {len(ranks)} {how} inside {name_of(function)}")
    for note in (_readable(ranks[rank].read_traceback()), outputs(ranks)):
        if note:
            error.add_note(note)
    raise error


def raise_hang(
    replies: Mapping[int, Reply],
    ranks: Sequence[RankProcess],
    function: Callable[..., Any],
    timeout: float,
) -> NoReturn:
    """Raise that some ranks did not finish in time, and where each of them was."""
    lines = [f"{name_of(function)} did not finish on {len(ranks)} ranks within {timeout:g} s"]
    for number, rank in enumerate(ranks):
        where = (
            "had finished"
            if number in replies
            else "was here:\n" + _readable(rank.read_traceback())
        )
        lines.append(f"rank {number} {where}")
    if printed := outputs(ranks):
        lines.append(printed)
    raise TimeoutError("\n".join(lines))


def outputs(ranks: Sequence[RankProcess]) -> str:
    """What the ranks wrote to stdout and stderr, under a heading each; empty if they did not."""
    texts = [(number, rank.read_output()) for number, rank in enumerate(ranks)]
    return "".join(
        f"--- output of rank {number} ---\n{text.rstrip()}\n" for number, text in texts if text
    )


def name_of(function: Callable[..., Any]) -> str:
    """The function as the user knows it."""
    return str(getattr(function, "__qualname__", function))


def is_agreed_skip(error: BaseException) -> bool:
    """Whether every rank skipped, so that none of them waits for another."""
    return getattr(error, _AGREED, False)


def _readable(dump: str) -> str:
    """A dump of faulthandler without the frames of the pool itself."""
    noise = (_OUR_FRAMES, "Fatal Python error: Aborted", "Extension modules:", '"<string>", line 1')
    return "\n".join(line for line in dump.splitlines() if not any(n in line for n in noise))


def _is_skip(error: BaseException | None) -> bool:
    # By name, because pytest need not be installed where this package is used.
    return type(error).__name__ in ("Skipped", "XFailed", "SkipTest")
