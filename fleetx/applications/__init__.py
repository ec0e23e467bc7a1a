"""Models to train as they are: plain modules with names, checkpoints and data loaders."""

from fleetx.applications.bert import BertBase, BertLarge
from fleetx.applications.catalogue import build, names
from fleetx.applications.curves import save_curves
from fleetx.applications.export import save_for_inference
from fleetx.applications.resnet import (
    Resnet18,
    Resnet34,
    Resnet50,
    Resnet101,
    Resnet152,
)
from fleetx.applications.train_configs import parse_train_configs
from fleetx.applications.transformer import Transformer
from fleetx.applications.vgg import VGG16

__all__ = [
    "VGG16",
    "BertBase",
    "BertLarge",
    "Resnet18",
    "Resnet34",
    "Resnet50",
    "Resnet101",
    "Resnet152",
    "Transformer",
    "build",
    "names",
    "parse_train_configs",
    "save_curves",
    "save_for_inference",
]
