"""The samples of an update stay the same when a run goes on on another number of workers."""

import math
from dataclasses import dataclass
from fractions import Fraction

from fleetx.api import session
from fleetx.api.session import Session
from fleetx.plan.error import PlanError


@dataclass(frozen=True)
class Beginning:
    """How a run began."""

    shares: int
    """Into how many shares its data was dealt."""
    merge: int
    """Batches of a share that made one update, as the script asked for."""

    @property
    def batches(self) -> int:
        """Batches of the script's loader in one update, all workers together."""
        return self.shares * self.merge


class GlobalBatch:
    """Lets gradient_merge and the loaders of a job keep the samples of an update.

    With fewer workers, or with more, an update shall see the samples that it would have seen.
    Nobody takes more samples at once than the script's loader gives: first the number of batches
    of an update grows or falls, then the size of a batch falls for what is left.
    """

    def __init__(self, call: str, before: Beginning | None, shares: int | None = None) -> None:
        """Act on the job of this process, before anything of it is laid out.

        Args:
            call: who is named in complaints.
            before: how the run began; None for one that begins.
            shares: for how many shares of the data the script's numbers are meant, if it says so.
        """
        self._job = session.current(call)
        if self._job.counted or self._job.dealt is not None:
            raise PlanError(
                f"fleet.{call}() came after fleet.distributed_model() or distributed_loader(), "
                "which it may have to tell how many samples a worker takes on this number of "
                "workers; call it right after fleet.init()."
            )
        self._before, self._shares = before, shares
        self._asked = 1
        self._job.replaced.append(self._fit)
        self._fit(self._job)

    def beginning(self) -> Beginning:
        """How this run began, which is now for one that begins, or was given another merge."""
        if self._before is not None and self._before.merge == self._asked:
            return self._before
        return Beginning(session.sharers(session.plan()), self._asked)

    def _fit(self, job: Session) -> None:
        strategy = job.strategy
        options = strategy.gradient_merge_configs
        self._asked = merge = int(options["k_steps"]) if strategy.gradient_merge else 1
        job.portion, job.merged = Fraction(1), 1
        if self._shares is not None:
            self._before = Beginning(self._shares, merge)
        before = self._before
        try:
            shares = session.sharers(session.plan())
        except PlanError:
            return  # which is told when the model is laid out
        if before is None or before.merge != merge or before.shares == shares:
            return
        if options["avg"] or not strategy.gradient_merge:
            merge = self._merge(job, math.ceil(before.batches / shares))
        job.portion = Fraction(before.batches, shares * merge)
        job.merged = merge // before.merge if merge % before.merge == 0 else 1
        job.say([_told(before, shares, merge, exactly=job.portion == 1)])

    def _merge(self, job: Session, wanted: int) -> int:
        """Let so many batches make an update, if that goes with the rest of the strategy."""
        strategy, asked = job.strategy, self._asked
        on = strategy.gradient_merge
        strategy.gradient_merge = wanted > 1 or on
        strategy.gradient_merge_configs = {"k_steps": wanted}
        try:
            session.plan()
        except PlanError:
            strategy.gradient_merge = on
            strategy.gradient_merge_configs = {"k_steps": asked}
            return asked
        return wanted


def _told(before: Beginning, shares: int, merge: int, *, exactly: bool) -> str:
    parts = f"{before.shares} share{'s' * (before.shares != 1)} of the data"
    said = f"the numbers of this run are meant for {parts}, and there are {shares}"
    if merge != before.merge:
        said += f": an update takes {merge} batches of each instead of {before.merge}"
        said += " (gradient_merge)"
    return f"{said}, which are the same samples" if exactly else said


def batch_size(job: Session, wanted: int, *, fixed: bool) -> int:
    """How many samples a worker takes at once, where the script's loader says `wanted`.

    Args:
        job: of this process.
        wanted: by the script.
        fixed: whether nothing else can be given.
    """
    if job.portion == 1:
        return wanted
    exact = wanted * job.portion
    given = wanted if fixed else max(1, math.floor(exact))
    if given == exact:
        job.say([f"a worker takes {given} samples at once instead of {wanted}, as it did before"])
    else:
        why = "that is made in batches or streamed" if fixed else "on this number of workers"
        job.say(
            [
                f"an update takes {float(given / exact):.3g} times as many samples as before, "
                f"because the data {why} cannot be dealt out otherwise: each worker takes {given} "
                f"at once, and {float(exact):g} would be the same"
            ]
        )
    return given
