"""``paddle.vision``: models, data sets and transforms of images."""

from fleetx.compat.paddle.vision import models as _models
from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.vision.image": "set_image_backend get_image_backend image_load",
        "paddle.vision.models": [name for name in dir(_models) if name not in _models.FILES],
    },
    modules=["datasets", "image", "models", "ops", "transforms"],
)
