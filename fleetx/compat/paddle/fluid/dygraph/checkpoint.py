"""``paddle.fluid.dygraph.checkpoint``: files of eager scripts of Paddle 1."""

from fleetx.compat.objects import load_dygraph, save_dygraph

__all__ = ["load_dygraph", "save_dygraph"]
