"""Random numbers that a group of ranks has in common, whatever their own seeds are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fleetx.torch_internals import seed_spread_tensors

Forward = Callable[..., Any]


class SharedRandomness:
    """Lets forwards of a model draw the same numbers on all ranks of a group.

    Replicated activations need the same dropout mask on each rank.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device = seed, device
        self.count = 0
        """Forwards so far; those of a recorded step count as one."""
        self._begun = False

    def around(self, forward: Forward) -> Forward:
        """Run each forward that will have a backward from a state of its own, and put back ours."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._begun or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return forward(*args, **kwargs)
            with self.begun():
                return forward(*args, **kwargs)

        return run

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Draw the numbers of the next forward inside, and go on outside as if none were drawn.

        Around a recorded step the host does so, too, where the forward inside can no longer: a
        graph takes its numbers from where the device's generator is when it is replayed. The
        criterion then draws what follows the forward's numbers, and so does a second forward.
        """
        devices = [] if self._device.type == "cpu" else [self._device]
        with torch.random.fork_rng(devices, device_type=self._device.type):
            # Twins of a seed and of a count must not meet: hence the hash.
            _begin_anew(hash((self._seed, self.count)) & (2**63 - 1), self._device)
            self.count += 1
            self._begun = True
            try:
                yield
            finally:
                self._begun = False


def _begin_anew(seed: int, device: torch.device) -> None:
    """What ``torch.manual_seed`` does, for the devices that draw numbers here.

    That one also notes the seed, with a traceback, for each kind of device that nobody uses, which
    takes a millisecond of each forward.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def common_seed(asked: int, mesh: DeviceMesh, device: torch.device) -> int:
    """A seed that the ranks of the mesh have in common and those of no other mesh have.

    It is made of the one that was asked for, or of the first rank's own if that is below 0.
    """
    own = (asked if asked >= 0 else torch.initial_seed()) % 2**63
    group = mesh.get_group()
    first, shared = dist.get_global_rank(group, 0), torch.tensor(own, device=device)
    dist.broadcast(shared, src=first, group=group)
    if device.type != "cpu":
        with torch.random.fork_rng([device], device_type=device.type):
            # DTensors would else meet in the whole world when the first one draws numbers.
            seed_spread_tensors(0, mesh)
    return hash((int(shared), first))
