"""The model that is evaluated: a name, a factory in a module, or a folder that was exported."""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.applications import catalogue
from fleetx.evaluate.precision import full_float32
from fleetx.evaluate.weights import load_weights

EXPORTED, SIGNATURE = "model.pt2", "signature.json"


@dataclass(frozen=True)
class Vectors:
    """A model, seen as what turns inputs into vectors."""

    run: Callable[[Tensor], Tensor]
    """A batch -> one vector for each of its inputs."""
    fingerprint: str
    """Of its weights: other weights, other vectors."""


def usual_shape(model: str) -> tuple[int, int, int]:
    """Channels, height and width of the images that an exported folder takes; else ImageNet's."""
    signature = Path(model) / SIGNATURE
    if (Path(model) / EXPORTED).is_file() and not signature.is_file():
        raise ValueError(
            f"--model {model} has {EXPORTED} and no {SIGNATURE}, which says what it takes: its "
            "export did not end. Export it again, or say --image_shape."
        )
    if signature.is_file():
        first = next(iter(json.loads(signature.read_text(encoding="utf-8"))["inputs"].values()))
        if len(first["shape"]) == 4 and all(first["shape"][1:]):
            _, channels, height, width = first["shape"]
            return channels, height, width
    return 3, 224, 224


def vectors_of(
    model: str, pretrained: str | None, device: torch.device, class_dim: int | None = None
) -> Vectors:
    """What turns batches into vectors of the last layer.

    Args:
        model: a name of ``fleetx.applications``, ``module:factory``, or a folder that
            ``save_inference_model`` wrote.
        pretrained: a safetensors file with the weights, a checkpoint of training, or a folder with
            one file per value; None for a folder that was exported and for a factory, which have
            their own.
        device: where it runs.
        class_dim: the classes of a model of ``fleetx.applications``; None for its usual number.
    """
    run: Any = _exported(model, pretrained, class_dim)
    if run is None:
        run = _built(model, class_dim)
        if pretrained is not None:
            load_weights(run, Path(pretrained), _hint(model))
        elif not _is_factory(model):
            raise ValueError(
                f"--model {model} begins with random weights, and no service has the same; give "
                "those it was trained to with --pretrained_model."
            )
        run.eval()
    found = _fingerprint(run)
    run.to(device)

    def vectors(batch: Tensor) -> Tensor:
        with full_float32():
            return _last(run(batch.to(device)))

    return Vectors(vectors, found)


def _exported(model: str, pretrained: str | None, class_dim: int | None) -> Any:
    """The model of a folder; None if it is no folder of an exported model."""
    if not (Path(model) / EXPORTED).is_file():
        return None
    for flag, value in (("--pretrained_model", pretrained), ("--class_dim", class_dim)):
        if value is not None:
            raise ValueError(
                f"--model {model} is an exported model with its own weights and classes, and "
                f"{flag} {value} would change them; leave one of the two out."
            )
    return torch.export.load(Path(model) / EXPORTED).module()


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _built(model: str, class_dim: int | None) -> nn.Module:
    where, _, factory = model.partition(":")
    is_factory = _is_factory(model)
    if is_factory and class_dim is not None:
        raise ValueError(
            f"--class_dim {class_dim} is for models of fleetx.applications, and --model {model} "
            f"makes its own; leave it out, and set the number of classes in {factory}."
        )
    made: Any = _from_module(where, factory) if is_factory else _application(model, class_dim)
    if not isinstance(made, nn.Module):
        raise TypeError(f"--model {model} gave {made!r}; it must make a torch.nn.Module.")
    return made


def _from_module(where: str, factory: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as for a script that stands beside the module
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--model {where}:{factory} names the module {where!r}, which cannot be imported "
            f"({error}); start in the folder that has it."
        ) from error
    if not hasattr(module, factory):
        raise ValueError(f"--model {where}:{factory}: {where} has no {factory!r}.")
    return getattr(module, factory)()


def _application(name: str, class_dim: int | None) -> Any:
    if name.lower() not in {known.lower() for known in catalogue.names()}:
        raise ValueError(
            f"--model {name} is no folder with {EXPORTED}, no 'module:factory', and none of "
            f"{', '.join(catalogue.names())}; give one of these."
        )
    return catalogue.build(name, **({} if class_dim is None else {"class_dim": class_dim}))


def _is_factory(model: str) -> bool:
    return ":" in model


def _hint(model: str) -> str:
    return (
        "" if _is_factory(model) else ", or set --class_dim to the number of classes they are for"
    )


def _last(outputs: Any) -> Tensor:
    """The first output, as one vector for each input."""
    while isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    if isinstance(outputs, dict):
        outputs = next(iter(outputs.values()))
    assert isinstance(outputs, Tensor), f"the model returned {type(outputs).__name__}"
    return outputs.detach().float().flatten(1).cpu()
