"""Which gradients came without an exchange: what DDP ignores or still waits for."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Backwards:
    """Holds the gradients that backward passes left against the reductions of one replica.

    DDP reduces once after each forward, when every parameter has its gradient. What a second
    backward adds stays local; so does everything while one gradient is missing. DDP itself says
    nothing of the first, and of the second only with the next forward.
    """

    def __init__(self, replica: DistributedDataParallel, trained: Sequence[Tensor]) -> None:
        self._replica, self._every = replica, not replica.find_unused_parameters
        self._count, self._armed = len(trained), False
        self._reached: list[Tensor | int] = []
        for parameter in trained:
            # A call into C: there are hundreds of parameters, and one of these in each backward.
            parameter.register_post_accumulate_grad_hook(self._reached.append)

    def forget(self, armed: bool) -> None:
        """A forward follows; ``armed`` says whether its backward is to be exchanged."""
        self._reached.clear()
        self._armed = armed

    def repeated(self) -> bool:
        """Whether some gradient was added to after the exchange that the last forward began."""
        if not self._armed:
            return False
        if self._every:
            return len(self._reached) > self._count
        return len(set(map(_number, self._reached))) < len(self._reached)

    def updated(self) -> None:
        """An update has used the gradients: remember which, but hold none of the parameters.

        Each has a hook that holds the list; the two would keep a model alive that nobody uses.
        """
        self._reached[:] = map(_number, self._reached)

    def unfinished(self) -> bool:
        """Whether the exchange waits for gradients that the backward did not bring."""
        if not self._armed or not self._reached:
            return False
        try:
            self._replica._check_reducer_finalized()
        except RuntimeError:
            return True
        return False


def _number(reached: Tensor | int) -> int:
    return reached if isinstance(reached, int) else id(reached)
