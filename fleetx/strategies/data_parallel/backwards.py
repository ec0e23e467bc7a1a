"""Which gradients came without an exchange: what DDP ignores or still waits for."""

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fleetx.comm.gradient_hooks import hook_gradient
from fleetx.comm.reached import Reached
from fleetx.torch_internals import check_reduced, measures


class Backwards:
    """Holds the gradients that backward passes left against the reductions of one replica.

    DDP reduces once after each forward, when every parameter has its gradient. What a second
    backward adds stays local; so does everything while one gradient is missing. DDP itself says
    nothing of the first, and of the second only with the next forward.
    """

    def __init__(self, replica: DistributedDataParallel, trained: Sequence[Tensor]) -> None:
        self._replica, self._every = replica, not replica.find_unused_parameters
        self._count, self._armed = len(trained), False
        self._reached = Reached(trained)
        self._forwards = 0
        """Those after which gradients were exchanged."""
        self._expected = self._came = self._used = False
        """Since the last update: whether a backward was to be exchanged, whether one came; and
        whether those that are noted were before it."""
        self._passed = False
        """Whether something was differentiated since the last forward."""

    def forget(self, armed: bool) -> None:
        """A forward follows; ``armed`` says whether its backward is to be exchanged."""
        self._came |= bool(self._reached) and not self._used
        self._expected, self._used = self._expected or armed, False
        self._reached.forget()
        self._passed = False
        self._armed = armed
        self._forwards += armed

    def watch(self, outputs: Iterable[Tensor]) -> None:
        """Notice when what a forward returned is differentiated."""
        for tensor in outputs:
            if tensor.requires_grad:
                hook_gradient(tensor, self._pass)

    def _pass(self, gradient: Tensor) -> None:
        self._passed = True

    def left_nothing(self) -> bool:
        """Whether gradients since the last forward came to no parameter.

        ``torch.autograd.grad`` returns them instead.
        """
        return self._passed and not self._reached

    def possible(self) -> bool:
        """Whether a backward would bring gradients: not while all that trains is frozen.

        Many a script freezes the judge of a pair while it trains the other one.
        """
        return self._reached.trains()

    def recordable(self) -> bool:
        """Whether the coming forward and backward leave the host out."""
        armed = self._replica.require_backward_grad_sync
        return not (armed and measures(self._forwards + 1))

    def repeated(self) -> bool:
        """Whether some gradient was added to after the exchange that the last forward began."""
        if not self._armed:
            return False
        usual = self._count if self._every else self._reached.distinct()
        return len(self._reached) > usual

    def updated(self) -> None:
        """An update has used the gradients: remember which, but hold none of the parameters."""
        self._reached.release()
        self._expected, self._came, self._used = False, False, True

    def replaced(self) -> bool:
        """Whether gradients for the update are there, and no backward since the last brought any.

        ``torch.autograd.grad`` gives them past the hooks that exchange them.
        """
        came = self._came or bool(self._reached)
        return self._expected and not came and self._reached.filled()

    def unfinished(self) -> bool:
        """Whether the exchange waits for gradients that the backward did not bring."""
        if not self._armed or not self._reached:
            return False
        try:
            check_reduced(self._replica)
        except RuntimeError:
            return True
        return False
