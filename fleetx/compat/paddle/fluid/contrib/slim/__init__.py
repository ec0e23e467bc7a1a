"""``paddle.fluid.contrib.slim``: compression of models, which does not exist here."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["quantization"])
