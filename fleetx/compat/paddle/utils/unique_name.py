"""``paddle.utils.unique_name``: names of layers."""

from fleetx.compat.unique_names import UniqueNameGenerator, generate, guard, switch

__all__ = ["UniqueNameGenerator", "generate", "guard", "switch"]
