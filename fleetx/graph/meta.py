"""What a model says about itself: a program knows its parts, and what it calls."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def said(model: nn.Module) -> Mapping[str, Any]:
    """The facts in ``model.meta``; none for a model that has something else of that name."""
    found = getattr(model, "meta", None)
    return found if isinstance(found, Mapping) else {}
