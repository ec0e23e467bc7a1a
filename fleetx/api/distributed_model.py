"""The type of a distributed module that is trained by whole batches."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fleetx.api.optimizer import DistributedOptimizer

Model = TypeVar("Model", bound=nn.Module)
_ANY_MODULE: Any = nn.Module
"""Type checkers cannot say "the user's class and two methods more". A class under something that
they do not know is accepted wherever the user's class is."""


class DistributedModel(_ANY_MODULE, Generic[Model]):  # type: ignore[misc]
    """What ``distributed_model(model, criterion=...)`` returns: your module, with two more calls.

    Without a criterion it is your module's own type.
    """

    if TYPE_CHECKING:

        def train_batch(
            self,
            data: Any,
            optimizer: DistributedOptimizer | None = None,
            lr_scheduler: LRScheduler | None = None,
        ) -> Tensor:
            """Train on one pair of inputs and targets; the mean loss is returned on every rank."""
            raise NotImplementedError

        def eval_batch(self, data: Any, compute_loss: bool = True) -> Any:
            """Evaluate one pair of inputs and targets; every rank gets the result."""
            raise NotImplementedError

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the module."""
            raise NotImplementedError

        def __getattr__(self, name: str) -> Any:
            """Whatever your module has."""
            raise NotImplementedError
