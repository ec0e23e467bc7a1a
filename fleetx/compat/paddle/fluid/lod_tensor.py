"""``paddle.fluid.lod_tensor``."""

from fleetx.compat.lod_tensors import create_lod_tensor, create_random_int_lodtensor

__all__ = ["create_lod_tensor", "create_random_int_lodtensor"]
