"""Embeddings whose gradients are lists of rows."""

from torch import nn

from fleetx.plan.error import PlanError


def refuse_sparse_gradients(model: nn.Module, why: str) -> None:
    """Refuse ``sparse=True`` where gradients must be whole tensors.

    Args:
        model: of the user.
        why: who needs whole ones.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.sparse:
            continue
        if module.weight.requires_grad:
            raise PlanError(
                f"{name!r} has sparse = True, with which its gradient is a list of rows: {why}. "
                f"Make the {type(module).__name__} with sparse=False, which trains the same, with "
                "an optimizer for whole gradients, such as torch.optim.Adam for SparseAdam."
            )
