"""Batches per update, wherever a user wrote them."""

from collections.abc import Mapping
from typing import Any

from fleetx.plan.error import PlanError


def with_cadence(chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The strategies, with gradient merging where the options of sharding ask for it."""
    wanted = chosen.get("sharding", {}).get("gradient_merge_acc_step", 1)
    if wanted == 1:
        return dict(chosen)
    merge = dict(chosen.get("gradient_merge", {}))
    if merge.setdefault("k_steps", wanted) != wanted:
        raise PlanError(
            f"sharding_configs['gradient_merge_acc_step'] = {wanted} and "
            f"gradient_merge_configs['k_steps'] = {merge['k_steps']} contradict each other: both "
            "are the batches per update. Set one of them."
        )
    return {**chosen, "gradient_merge": merge}
