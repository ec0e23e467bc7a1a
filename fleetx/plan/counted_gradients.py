"""Embeddings whose gradients are divided by counts of a batch."""

from torch import nn

from fleetx.plan.error import PlanError


def refuse_counted_gradients(model: nn.Module) -> None:
    """Refuse ``scale_grad_by_freq`` where servers take the mean over shares of a batch.

    Each worker would divide by how often an id is in its own share, and the mean of that is not
    what one process computes on the whole batch. Data parallel and sharding pass it on to torch,
    which computes the same mean.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.scale_grad_by_freq:
            continue
        if module.weight.requires_grad:
            raise PlanError(
                f"{name!r} has scale_grad_by_freq = True, with which the gradient of a row is "
                "divided by how often its id is in the batch: workers count in their own shares "
                "of it, and would train other weights than one process on all of it. Make the "
                f"{type(module).__name__} with scale_grad_by_freq=False."
            )
