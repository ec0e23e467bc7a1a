"""``paddle.vision.models``: nets for images."""

from fleetx.compat.tables import table

FILES = ["resnet", "vgg", "mobilenetv1", "mobilenetv2", "lenet", "pretrained"]

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.vision.models.resnet": (
            "ResNet resnet18 resnet34 resnet50 resnet101 resnet152 BottleneckBlock BasicBlock "
            "resnext50_32x4d resnext50_64x4d resnext101_32x4d resnext101_64x4d resnext152_32x4d "
            "resnext152_64x4d wide_resnet50_2 wide_resnet101_2"
        ),
        "paddle.vision.models.vgg": "VGG vgg11 vgg13 vgg16 vgg19",
        "paddle.vision.models.mobilenetv1": "MobileNetV1 mobilenet_v1",
        "paddle.vision.models.mobilenetv2": "MobileNetV2 mobilenet_v2",
        "paddle.vision.models.lenet": "LeNet",
    },
    modules=FILES,
)
