"""`world(n)`: a function on n ranks, in processes that are kept for the next call."""

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec

from typing_extensions import override

from fleetx.testing.fork_client import ForkClient
from fleetx.testing.pool import Pool
from fleetx.testing.rank import refuse_inside_a_rank

P = ParamSpec("P")


class World:
    """`size` ranks in one gloo process group; they see no GPU.

    Two worlds of the same size share their processes; only the limit is their own.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank.

        Returns:
            The results, in the order of the ranks.

        Raises:
            TimeoutError: Some rank did not finish within the limit; the message shows where each
                rank was. The processes are ended, and the next call starts new ones.
            RuntimeError: A process ended in the middle of the call, or the call was made inside
                a rank.
            BaseException: Whatever the first failing rank raised, with its traceback as a note.
        """
        refuse_inside_a_rank(f"world({self.size}).run()")
        return _kept.pool(self.size).call(function, args, kwargs, self.timeout)

    def __call__(self, function: Callable[P, object]) -> Callable[P, None]:
        """Decorate a test so that its body runs on every rank.

        Fixtures and parameters are resolved once, in the parent, and must be picklable.
        """

        @functools.wraps(function)
        def on_every_rank(*args: P.args, **kwargs: P.kwargs) -> None:
            self.run(function, *args, **kwargs)

        return on_every_rank

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks; empty before the first call and after a failure."""
        refuse_inside_a_rank(f"world({self.size}).pids")
        return _kept.pool(self.size).pids

    @override
    def __repr__(self) -> str:
        return f"world({self.size}, timeout={self.timeout:g})"


def world(n: int, timeout: float = 60.0) -> World:
    """A world of `n` ranks in which each call may take `timeout` seconds.

    The processes start at the first call and stay up until the interpreter ends.
    """
    if n < 1:
        raise ValueError(f"world(n={n!r}): a world has at least one rank. Set n to 1, 2, 4, ...")
    if timeout <= 0:
        raise ValueError(
            f"world(timeout={timeout!r}): no call can finish in that time. "
            "Set timeout to a number of seconds above 0."
        )
    return World(n, timeout)


class _Kept:
    """The fork server and the pools of this interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forks: ForkClient | None = None
        self._pools: dict[int, Pool] = {}

    def pool(self, size: int) -> Pool:
        with self._lock:
            if self._forks is None or not self._forks.is_usable:
                self._forks, self._pools = ForkClient(), {}
            return self._pools.setdefault(size, Pool(size, self._forks))


_kept = _Kept()
