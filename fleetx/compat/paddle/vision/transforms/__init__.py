"""``paddle.vision.transforms``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.vision.transforms.transforms": (
            "BaseTransform Compose ToTensor Normalize Transpose Resize CenterCrop RandomCrop "
            "RandomResizedCrop RandomHorizontalFlip RandomVerticalFlip Pad Grayscale "
            "BrightnessTransform ContrastTransform"
        ),
        "paddle.vision.transforms.functional": (
            "to_tensor normalize resize center_crop crop hflip vflip pad to_grayscale"
        ),
        "paddle.vision.transforms.colours": (
            "ColorJitter HueTransform SaturationTransform adjust_brightness adjust_contrast "
            "adjust_saturation adjust_hue"
        ),
        "paddle.vision.transforms.turns": "RandomErasing RandomRotation erase rotate",
    },
    modules=["transforms", "functional"],
)
