"""Which options of torch's optimizers a rule takes over that replaces one of them."""

from collections.abc import Mapping
from typing import Any

SPEED = frozenset({"foreach", "fused", "capturable"})
"""Options that say how to compute and not what."""


def adopted(options: Mapping[str, Any], *, without: frozenset[str]) -> dict[str, Any]:
    """The options of a group, those of other code (such as schedulers) included.

    ``fused=False`` and ``foreach=True`` both ask for torch's list operations and become
    ``fused=False``; anything else leaves the choice to the rule.

    Args:
        options: A group's options, or the defaults of an optimizer.
        without: Options that the new rule does not know.
    """
    kept = {key: value for key, value in options.items() if key not in without | SPEED}
    listed = options.get("fused") is False or options.get("foreach") is True
    return kept | {"fused": False if listed else None}
