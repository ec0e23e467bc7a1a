"""The one table from the spellings of older releases to ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spelling:
    """Where an old attribute lives today."""

    attribute: str
    key: str | None = None
    """The option inside ``attribute``, when that is a block."""

    values: Mapping[Any, Any] | None = None
    """Old value -> new value; None when values did not change."""

    caution: str | None = None
    """What a user must know because the meaning is not quite the same."""


ATTRIBUTES: dict[str, Spelling] = {
    "use_local_sgd": Spelling("localsgd"),
    "local_sgd_steps": Spelling("localsgd_configs", "k_steps"),
    "local_sgd_is_warm_steps": Spelling(
        "localsgd_configs",
        "begin_step",
        caution="local_sgd_is_warm_steps counted epochs in scripts of Fleet 1.x; here it sets "
        "localsgd_configs['begin_step'], which counts updates.",
    ),
    "collective_mode": Spelling("localsgd", values={"grad_allreduce": False, "local_sgd": True}),
    "forward_recompute": Spelling("recompute"),
    "recompute_checkpoints": Spelling("recompute_configs", "checkpoints"),
    "exec_strategy": Spelling("execution_strategy"),
    "use_amp": Spelling("amp"),
    "amp_loss_scaling": Spelling("amp_configs", "init_loss_scaling"),
}
"""Attributes of Fleet 1.x."""

KEYS: dict[str, dict[str, str]] = {
    "sharding_configs": {
        "fuse_broadcast_MB": "segment_broadcast_MB",
        "sharding_group_size": "sharding_degree",
    },
    "pipeline_configs": {"micro_batch": "accumulate_steps"},
}
"""Keys of Fleet 2.0 that were renamed later."""

VALUES: dict[str, dict[str, str]] = {
    "mode": {"nccl2": "collective", "COLLECTIVE": "collective", "PS": "ps"},
}
"""Words for the same thing: both executors of Fleet 1.x are one engine here."""


def current_keys(block: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a block under the names of today."""
    renamed = KEYS.get(block, {})
    for old, new in renamed.items():
        if old in options and new in options and options[old] != options[new]:
            raise ValueError(
                f"{block} sets {old!r} to {options[old]!r} and {new!r} to {options[new]!r}, but "
                f"the first is the old name of the second; keep {new!r}"
            )
    return {renamed.get(key, key): value for key, value in options.items()}
