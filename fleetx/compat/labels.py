"""Whether labels belong to predictions: torch would take the first of them, or repeat them."""

from typing import Any

import torch

from fleetx.record.variable import Variable


def check_labels(predictions: Any, labels: Any, axis: int = -1, *, soft: bool = False) -> None:
    """Refuse labels of other sizes than one for each row of predictions.

    Args:
        predictions: with the classes along ``axis``.
        labels: of the same sizes with 1 there, or without it; soft ones have a share of each class.
        axis: that of the classes.
        soft: whether labels are soft.
    """
    mine, given = _sizes(predictions), _sizes(labels)
    axis %= len(mine)
    wanted = mine if soft else [*mine[:axis], 1, *mine[axis + 1 :]]
    short = not soft and len(given) == len(mine) - 1
    if not _agree(wanted, [*given[:axis], 1, *given[axis:]] if short else given):
        whole = (
            "; labels with a share of each class need soft_label=True"
            if not soft and _agree(mine, given)
            else ""
        )
        raise ValueError(
            f"labels of {_shown(given)} do not belong to predictions of {_shown(mine)}, whose "
            f"classes are along dimension {axis}: give {'shares' if soft else 'labels'} of "
            f"{_shown(wanted)}{whole}."
        )


def check_alike(predictions: Any, labels: Any) -> None:
    """Refuse labels of other sizes than those of the predictions."""
    mine, given = _sizes(predictions), _sizes(labels)
    if not _agree(mine, given):
        raise ValueError(
            f"labels of {_shown(given)} do not belong to predictions of {_shown(mine)}, one to "
            f"each number: give labels of {_shown(mine)}."
        )


def _sizes(value: Any) -> list[Any]:
    seen = value.fake if isinstance(value, Variable) else value
    return list(torch.Tensor.size(seen))


def _agree(mine: list[Any], given: list[Any]) -> bool:
    """Sizes that come with the data are left to the run."""
    both = zip(mine, given, strict=False)
    return len(mine) == len(given) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in both
    )


def _shown(sizes: list[Any]) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in sizes]
