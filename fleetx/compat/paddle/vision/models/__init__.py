"""``paddle.vision.models``: nets for images."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.vision.models.resnet": (
            "ResNet resnet18 resnet34 resnet50 resnet101 resnet152 BottleneckBlock BasicBlock"
        ),
        "paddle.vision.models.vgg": "VGG vgg11 vgg13 vgg16 vgg19",
        "paddle.vision.models.mobilenetv1": "MobileNetV1 mobilenet_v1",
        "paddle.vision.models.mobilenetv2": "MobileNetV2 mobilenet_v2",
        "paddle.vision.models.lenet": "LeNet",
    },
    modules=["resnet", "vgg", "mobilenetv1", "mobilenetv2", "lenet", "pretrained"],
)
