"""Models of images, as FleetX 1 names them."""

from typing import Any, ClassVar

from fleetx.compat.fleetx_1 import blocks
from fleetx.compat.fleetx_1.dataset.feeding import Loader
from fleetx.compat.fleetx_1.dataset.image_dataset import (
    image_dataloader_from_filelist,
    image_loader_of,
)
from fleetx.compat.fleetx_1.model_base import ModelBase
from fleetx.compat.paddle.fluid.layers.activation import softmax
from fleetx.compat.paddle.fluid.layers.io import declared
from fleetx.compat.paddle.fluid.layers.loss import cross_entropy
from fleetx.compat.paddle.fluid.layers.metric_op import accuracy
from fleetx.compat.paddle.fluid.layers.reduction import mean


class _Images(ModelBase):
    network: ClassVar[Any]

    def __init__(self, data_layout: str = "NCHW", class_dim: int = 1000, size: int = 224) -> None:
        """Write the model.

        Args:
            data_layout: "NCHW" or "NHWC".
            class_dim: how many classes.
            size: pixels of a side.
        """
        super().__init__()
        self.data_layout = data_layout
        shape = [3, size, size] if data_layout == "NCHW" else [size, size, 3]
        image = declared("feed_image", [None, *shape], "float32")
        label = declared("feed_label", [None, 1], "int64")
        scores, outputs = type(self).network(image, class_dim, data_layout)
        chances = softmax(scores)
        self.inputs = [image, label]
        self.loss = mean(cross_entropy(chances, label))
        self.checkpoints = [output.name for output in outputs]
        self.target = {
            "acc1": accuracy(chances, label, k=1),
            "acc5": accuracy(chances, label, k=min(5, class_dim)),
        }

    def get_train_dataloader(
        self, local_path: str, batch_size: int = 32, shuffle: bool = True, use_dali: bool = False
    ) -> Loader:
        """Feeds from the training images of a folder."""
        return self._loader(local_path, batch_size, "train", shuffle, use_dali)

    def get_val_dataloader(
        self, local_path: str, batch_size: int = 32, use_dali: bool = False
    ) -> Loader:
        """Feeds from the validation images of a folder."""
        return self._loader(local_path, batch_size, "val", False, use_dali)

    def _loader(self, path: str, size: int, phase: str, shuffle: bool, use_dali: bool) -> Loader:
        layout = self.data_layout
        return image_loader_of(path, self.inputs, size, phase, shuffle, use_dali, layout)

    def load_imagenet_from_file(  # noqa: PLR0917 (the order of FleetX)
        self,
        filelist: str,
        batch_size: int = 32,
        phase: str = "train",
        shuffle: bool = True,
        use_dali: bool = False,
        data_layout: str | None = None,
    ) -> Loader:
        """Feeds from the images of a list."""
        return image_dataloader_from_filelist(
            filelist,
            self.inputs,
            batch_size,
            phase,
            shuffle and phase == "train",
            use_dali,
            data_layout or self.data_layout,
        )


class Resnet50(_Images):
    """ResNet-50."""

    network = staticmethod(blocks.resnet50)


class VGG16(_Images):
    """VGG-16."""

    network = staticmethod(blocks.vgg16)
