"""Models by the names that command lines use."""

from typing import Any

from torch import nn

from fleetx.applications import bert, resnet, transformer, vgg

_MODELS: dict[str, type[nn.Module]] = {
    "ResNet18": resnet.Resnet18,
    "ResNet34": resnet.Resnet34,
    "ResNet50": resnet.Resnet50,
    "ResNet101": resnet.Resnet101,
    "ResNet152": resnet.Resnet152,
    "VGG16": vgg.VGG16,
    "BertBase": bert.BertBase,
    "BertLarge": bert.BertLarge,
    "Transformer": transformer.Transformer,
}


def names() -> list[str]:
    """What ``--model`` may be."""
    return list(_MODELS)


def build(name: str, **options: Any) -> Any:
    """A new model by its name, upper and lower case alike."""
    found = {known.lower(): kind for known, kind in _MODELS.items()}.get(name.lower())
    if found is None:
        raise ValueError(f"model={name!r} is not known; use one of {', '.join(_MODELS)}.")
    return found(**options)
