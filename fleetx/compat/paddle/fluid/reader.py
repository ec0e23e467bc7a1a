"""``paddle.fluid.reader``."""

from fleetx.compat.loaders import GeneratorLoader, PyReader
from fleetx.compat.paddle.io.reader import DataLoader, default_collate_fn

__all__ = ["DataLoader", "GeneratorLoader", "PyReader", "default_collate_fn"]
