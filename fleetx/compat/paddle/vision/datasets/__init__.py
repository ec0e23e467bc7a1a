"""``paddle.vision.datasets``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.vision.datasets.mnist": "MNIST FashionMNIST",
        "paddle.vision.datasets.cifar": "Cifar10 Cifar100",
        "paddle.vision.datasets.flowers": "Flowers",
        "paddle.vision.datasets.folder": "DatasetFolder ImageFolder",
    },
    modules=["mnist", "cifar", "flowers", "folder"],
)
