"""Embeddings whose forward writes into their weights."""

from collections.abc import Collection

from torch import nn

from fleetx.plan.error import PlanError


def refuse_shortened_rows(
    model: nn.Module, why: str, otherwise: str = "", spared: Collection[nn.Module] = ()
) -> None:
    """Refuse ``max_norm``, which shortens the rows that a batch looks up, where that is lost.

    Args:
        model: of the user.
        why: what a forward writes is not what is trained.
        otherwise: what can be set instead of leaving it out.
        spared: layers for which that was done.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or module.max_norm is None:
            continue
        if module in spared or not module.weight.requires_grad:
            continue  # who looks a row up finds it shortened, whatever is kept of it
        raise PlanError(
            f"{name!r} has max_norm = {module.max_norm:g}, with which each forward shortens rows "
            f"of the weight that its batch looks up: {why}. Make the {type(module).__name__} "
            "without max_norm, and shorten the rows that it returns: rows * (max_norm / "
            f"rows.norm(dim=-1, keepdim=True)).clamp(max=1){otherwise}."
        )
