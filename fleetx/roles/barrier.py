"""Waiting for all workers with a limit, so that nobody waits for ever for one who never comes."""

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from fleetx.roles import activity
from fleetx.roles.stores import Store, is_served, patience

LONGEST_ACTION = timedelta(minutes=30)
"""How long workers wait for one that is still at work; torch's collectives wait as long."""
GRACE = timedelta(seconds=10)
"""How long worker 0 stays after a failure, so that others can read of it."""
PARTING = 1.0
"""Seconds for which it stays for others that end at the same time."""


@dataclass
class Barrier:
    """Counts the workers in at every call; whoever waits too long learns who is missing.

    Gloo has a barrier with a limit too, but only its rank 0 keeps to it. The messages left in the
    store are overwritten at every round, so that a long job does not fill it.
    """

    store: Store
    index: int
    size: int
    held: int = field(default=0, init=False)
    actions: int = field(default=0, init=False)
    told: int = field(default=0, init=False)
    followed: int = field(default=0, init=False)
    unheard: str = field(default="", init=False)
    met: Counter[str] = field(default_factory=Counter, init=False)

    def tell(self, call: str, fact: str) -> list[str]:
        """What every worker says in the same call, in their order.

        No collective, of which a step has a known number, but as patient as one.
        """
        self.told += 1
        keys = [_said(self.told, index) for index in range(self.size)]
        try:
            self.store.set(keys[self.index], fact)
            with activity.meeting(call):
                self.store.wait(keys, default_pg_timeout)
            said = [text.decode() for text in self.store.multi_get(keys)]
        except dist.DistError as error:
            raise RuntimeError(f"{call} {self._silent(keys)}; {_ADVICE}") from error
        if _ENDED in said:
            raise RuntimeError(_unreached(call, said.index(_ENDED)))
        self.await_all(call)  # all have read
        self.store.delete_key(keys[self.index])
        return said

    def first_said(self, topic: str, fact: str, before: str = "") -> str:
        """What the first worker to come here said of the topic; waits for nobody.

        Args:
            topic: each worker speaks of it once.
            fact: what this worker says.
            before: an earlier topic, which the first one forgets.
        """
        said = self.store.compare_set(f"said/{topic}", "", fact).decode()
        if said == fact and before:
            self.store.delete_key(f"said/{before}")
        return said

    def leave_word(self, topic: str, fact: str, before: str = "") -> None:
        """Say something that others may read once they know that it was said.

        Args:
            topic: of this worker alone.
            fact: what it says.
            before: an earlier topic of this worker, which nobody reads any more.
        """
        self.store.set(f"word/{topic}", fact)
        if before:
            self.store.delete_key(f"word/{before}")

    def word(self, topic: str) -> str:
        """What a worker has said of a topic, after all of them have met."""
        return self.store.get(f"word/{topic}").decode()

    def from_first(self, call: str, topic: str, fact: str) -> str:
        """What worker 0 says of a topic; it waits for nobody, and the others for it alone.

        Others may come for it after worker 0's last step: `close` waits for them.

        Args:
            call: in which they do.
            topic: spoken of once; whoever chooses topics lets old ones go, with `drop`.
            fact: what worker 0 says; that of others does not matter.
        """
        with activity.meeting(call):
            if self.index == 0:
                self.store.set(f"told/{topic}", fact)
                self.unheard = topic if self.size > 1 else ""
                return fact
            self.store.wait([f"told/{topic}"], default_pg_timeout)
            told = self.store.get(f"told/{topic}").decode()
        if self.store.add(f"told/count/{topic}", 1) == self.size - 1:
            self.store.delete_key(f"told/count/{topic}")
            self.store.set(f"told/heard/{topic}", "")
        return told

    def drop(self, topic: str) -> None:
        """Forget what worker 0 said, which everybody has read."""
        self.store.delete_key(f"told/{topic}")
        self.store.delete_key(f"told/heard/{topic}")

    def close(self) -> None:
        """Tell those who wait for this worker, now or later, that it will not come.

        Before the store goes with worker 0 it lets the others read what it said last. They have
        read what it said before that, for they read in its order. It waits for a short time only:
        one of them may be gone.
        """
        if self.size > 1 and is_served(self.store):  # else worker 0 has gone already
            with contextlib.suppress(dist.DistError):
                self._excuse()
                if self.index == 0:
                    self._see_off()
        if self.unheard:
            with contextlib.suppress(dist.DistError):
                self.store.wait([f"told/heard/{self.unheard}"], GRACE)
            self.unheard = ""

    def _excuse(self) -> None:
        """In all that this worker would be asked next; what others count does without it."""
        self.store.set(_said(self.told + 1, self.index), _ENDED)
        self.store.add(_leaving(self.held + 1), 1)
        self.store.compare_set(_go(self.held + 1), "", f"{_ENDED}{self.index}")
        self.store.add(f"action/read/{self.actions + 1}", 1)
        self.store.compare_set(_verdict(self.actions + 1), "", f"worker {self.index}: {_WHY}")
        if self.index == 0:
            self.store.compare_set(_lead(self.followed + 1), "", f"worker 0: {_WHY}")
        # The last word, which nobody answers.
        self.store.set(_left(self.index), str(activity.batches()))

    def ended(self) -> dict[int, int] | None:
        """Workers that have ended -> after how many batches; None if worker 0 took that along.

        Where an exchange with worker 0 has just broken off, its process is about to go.
        """
        time.sleep(PARTING / 5)
        if not is_served(self.store):
            return None
        try:
            found = [index for index in range(self.size) if self.store.check([_left(index)])]
            return {index: int(self.store.get(_left(index))) for index in found}
        except dist.DistError:
            return None

    def _see_off(self) -> None:
        """Let others that end now speak: torch prints a page where the store goes meanwhile."""
        ended, until = [_left(index) for index in range(self.size)], time.monotonic() + PARTING
        while not self.store.check(ended) and time.monotonic() < until:
            time.sleep(0.005)

    def ask(self, wish: str, why: str) -> None:
        """Leave a wish for worker 0, which looks with `asked`; waits for nobody."""
        self.store.set(f"wish/{wish}", why)

    def asked(self, wish: str) -> str:
        """Why some worker left that wish; nothing if none did."""
        key = f"wish/{wish}"
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def await_all(self, call: str) -> None:
        """Return when every worker has made the same call; complain on all of them otherwise."""
        self.held += 1
        go = _go(self.held)
        try:
            self.store.set(_seat(self.index), f"{self.held} {call}")
            if self.store.add("meeting/arrived", 1) == self.held * self.size:
                self._open(go)
            with activity.meeting(call):
                self.store.wait([go], patience())
                verdict = self.store.get(go).decode()
                self._leave(verdict)
        except dist.DistError as error:
            raise RuntimeError(f"{call} {self._absent()}; {_ADVICE}") from error
        if verdict.startswith(_ENDED):
            raise RuntimeError(_unreached(call, int(verdict.removeprefix(_ENDED))))
        if verdict:
            raise RuntimeError(f"{verdict}; {_ADVICE}")

    def await_some(self, call: str, workers: Sequence[int], fact: str = "") -> None:
        """Return when these workers, this one among them, have made the same call.

        Args:
            call: which it is.
            workers: in their order; two groups with the same first and last worker are of other
                sizes.
            fact: what the call is about, which must be the same for all of them.
        """
        group = f"{workers[0]}-{workers[-1]}/{len(workers)}"
        self.met[group] += 1
        go, came, about = (
            f"some/{what}/{group}/{self.met[group]}" for what in ("go", "came", "about")
        )
        own = f"{call} {fact}".strip()
        try:
            first = self.store.compare_set(about, "", own).decode()
            if first != own:
                self.store.compare_set(go, "", _differing(self.index, own, first))
            if self.store.add(came, 1) == len(workers):
                self.store.delete_key(came)
                self.store.compare_set(go, "", _WELL)
                # Everybody has come here, so nobody still waits for the round before.
                for what in ("go", "about"):
                    self.store.delete_key(f"some/{what}/{group}/{self.met[group] - 1}")
            with activity.meeting(call):
                self.store.wait([go], patience())
                verdict = self.store.get(go).decode()
        except dist.DistError as error:
            with contextlib.suppress(dist.DistError):  # whoever goes on has not come
                if self.store.add(came, -1) == 0:
                    self.store.delete_key(about)  # next time it may ask for something else
                self.met[group] -= 1
            raise RuntimeError(
                f"{call} was asked for by worker {self.index}, and not by all of those that share "
                f"it ({', '.join(map(str, workers))}) within {int(patience().total_seconds())} s: "
                "ask on all of them, and write it down on one"
            ) from error
        if verdict != _WELL:
            raise RuntimeError(verdict)

    def report(self, trouble: str) -> None:
        """Tell the others what went wrong with an action of all workers; hardly waits for them."""
        self.actions += 1
        self.store.set(_verdict(self.actions), f"worker {self.index}: {trouble}")
        self._part(GRACE)

    def trouble(self) -> str:
        """What another worker reports of the same action; nothing once it went well on all."""
        self.actions += 1
        verdict, count = _verdict(self.actions), f"action/well/{self.actions}"
        if self.store.add(count, 1) == self.size:
            self.store.set(verdict, "")
            self.store.delete_key(count)
            # Everybody has come here, so nobody still reads the verdict on the action before.
            self.store.delete_key(_verdict(self.actions - 1))
        with activity.meeting("what all workers do or none"):
            self.store.wait([verdict], LONGEST_ACTION)
        found = self.store.get(verdict).decode()
        self._part(GRACE if found else LONGEST_ACTION)
        return found

    def lead(self, trouble: str, leaders: int) -> None:
        """Let the followers go on when all leaders came here, or at once with a trouble.

        Waits until the followers have heard of it, because worker 0 may keep the store and take it
        along; after a failure for a short time only.
        """
        self.followed += 1
        go, came = _lead(self.followed), f"lead/came/{self.followed}"
        if trouble:
            self.store.set(go, trouble)
        elif self.store.add(came, 1) == leaders:
            # A trouble that another leader told stays what it is.
            self.store.compare_set(go, "", _WELL)
            self.store.delete_key(came)
        with contextlib.suppress(dist.DistError), activity.meeting("fleet.first_worker_first()"):
            self.store.wait([f"lead/all_read/{self.followed}"], GRACE if trouble else patience())

    def follow(self, call: str, leaders: int) -> str:
        """Wait for the leaders; returns the trouble that one of them had, if any."""
        self.followed += 1
        go, read = _lead(self.followed), f"lead/read/{self.followed}"
        with activity.meeting(call):
            self.store.wait([go], LONGEST_ACTION)
        said = self.store.get(go).decode()
        if self.store.add(read, 1) == self.size - leaders:
            self.store.delete_key(go)
            self.store.delete_key(read)
            self.store.set(f"lead/all_read/{self.followed}", "")
        return "" if said == _WELL else said

    def _part(self, limit: timedelta) -> None:
        """Leave an action; worker 0 goes last, because it may keep the store and take it along.

        After a failure it waits for a short time only: others may be inside of the action, in a
        collective that ends when this worker does.
        """
        read, all_read = f"action/read/{self.actions}", f"action/all_read/{self.actions}"
        if self.store.add(read, 1) == self.size:
            self.store.delete_key(read)
            self.store.set(all_read, "")
        if self.index == 0:
            with contextlib.suppress(dist.DistStoreError):  # they come too late
                self.store.wait([all_read], limit)
            self.store.delete_key(all_read)

    def _open(self, go: str) -> None:
        """The last to arrive compares the calls and lets everybody go."""
        calls = [text.partition(" ")[2] for text in self._seated()]
        listed = ", ".join(f"worker {index} called {call}" for index, call in enumerate(calls))
        self.store.set(go, listed if len(set(calls)) > 1 else "")
        # Everybody has come here, so nobody still reads the message of the round before.
        self.store.delete_key(_go(self.held - 1))

    def _leave(self, verdict: str) -> None:
        """Worker 0 goes last: it may keep the store, which would go with it."""
        empty, left = f"meeting/empty/{self.held}", _leaving(self.held)
        if self.store.add(left, 1) == self.size:
            self.store.delete_key(left)
            self.store.set(empty, "")
        if self.index == 0:
            try:
                self.store.wait([empty], GRACE if verdict.startswith(_ENDED) else patience())
                self.store.delete_key(empty)
            except dist.DistStoreError:
                if not verdict.startswith(_ENDED):  # others may never come to this call
                    raise

    def _seated(self) -> list[str]:
        seats = [_seat(index) for index in range(self.size)]
        return [text.decode() for text in self.store.multi_get(seats)]

    def _absent(self) -> str:
        waited = f"waited {int(patience().total_seconds())} s for all {self.size} workers, but"
        try:
            missing = [str(index) for index in range(self.size) if not self._came(index)]
        except dist.DistError:
            return f"{waited} lost worker 0, which kept the count; look at its log"
        return f"{waited} these did not come: {', '.join(missing)}"

    def _silent(self, keys: list[str]) -> str:
        try:
            silent = [str(index) for index, key in enumerate(keys) if not self.store.check([key])]
        except dist.DistError:
            return "lost worker 0, which keeps what workers say; look at its log"
        return f"was not reached by: {', '.join(silent)}"

    def _came(self, index: int) -> bool:
        if not self.store.check([_seat(index)]):
            return False
        return int(self.store.get(_seat(index)).split()[0]) >= self.held


_WELL = "well"
_ENDED = "\0ended"
"""What no worker says as long as it runs."""
_WHY = "its script has ended, or was interrupted, before that"

_ADVICE = (
    "every worker must make the same calls in the same order "
    "(set FLEETX_TIMEOUT, in seconds, if one of them is only slow)"
)


def _differing(index: int, own: str, first: str) -> str:
    return (
        f"workers that share a tensor ask for different things at the same time, and would get "
        f"numbers of each other's: worker {index} for {own}, and the first one for {first}; ask "
        "for the same on all of them, in the same order, and write it down on one"
    )


def _seat(index: int) -> str:
    return f"meeting/here/{index}"


def _unreached(call: str, index: int) -> str:
    return f"{call} was not reached by: {index}, because {_WHY}; {_ADVICE}"


def _said(told: int, index: int) -> str:
    return f"meeting/said/{told}/{index}"


def _left(index: int) -> str:
    return f"ended/{index}"


def _go(held: int) -> str:
    return f"meeting/go/{held}"


def _leaving(held: int) -> str:
    return f"meeting/left/{held}"


def _lead(followed: int) -> str:
    return f"lead/go/{followed}"


def _verdict(action: int) -> str:
    return f"action/{action}"
