"""A folder of weights as transformers writes and reads it: safetensors files, and their index."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor

from fleetx.comm.shares import Share
from fleetx.io.files import written_together

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FORMATS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""How the header of a file calls what torch has."""

Kind = tuple[list[int], str]
"""Shape, and the name of the type in torch."""


class WeightFolder:
    """The tensors of a folder, of which parts are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        files = _files(folder)
        opened = {file: self._stack.enter_context(_open(folder / file)) for file in files}
        self._places = {name: file for file in opened.values() for name in file.keys()}  # noqa: SIM118

    def __enter__(self) -> "WeightFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """What there is."""
        return sorted(self._places)

    def shape(self, name: str) -> list[int]:
        """That of the whole tensor."""
        return list(self._places[name].get_slice(name).get_shape())

    def read(self, name: str, share: Share) -> Tensor:
        """A part of a tensor; nothing else of it is read."""
        if not share:
            whole: Tensor = self._places[name].get_tensor(name)
            return whole
        part: Tensor = self._places[name].get_slice(name)[share]
        return part


def _open(path: Path) -> Any:
    return safe_open(path, framework="pt")


def _files(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        return sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    if (folder / ONE).is_file():
        return [ONE]
    raise FileNotFoundError(
        f"the folder {str(folder)!r} has neither {ONE} nor {INDEX}; pass a folder that "
        "save_pretrained() or fleet.save_weights() wrote, with safetensors files."
    )


def size_in_bytes(given: int | str) -> int:
    """``"5GB"``, ``"200MB"`` or a number, in bytes."""
    found = re.fullmatch(r"(\d+)\s*([KMGT]?)I?B?", str(given).strip().upper())
    if isinstance(given, bool) or found is None or not int(found[1]):
        raise ValueError(
            f"max_shard_size = {given!r} is no size; give a number of bytes above 0, or text such "
            "as '5GB' or '200MB'."
        )
    return int(found[1]) * _UNITS[found[2]]


class Written:
    """A folder of weights that is being written, tensor by tensor in the order that was announced.

    The head of a file says where each tensor lies, so none of them is kept once it is written.
    """

    def __init__(self, folder: Path, announced: Mapping[str, Kind], limit: int) -> None:
        """Deal the tensors out to files.

        Args:
            folder: where they shall be.
            announced: all tensors that will come, in their order.
            limit: the most bytes of a file, unless one tensor has more.
        """
        self._folder, self._kinds = folder, announced
        groups = _dealt(announced, limit)
        several = len(groups) > 1
        self._files = {
            f"model-{number:05d}-of-{len(groups):05d}.safetensors" if several else ONE: names
            for number, names in enumerate(groups, 1)
        }
        self._of = {name: file for file, names in self._files.items() for name in names}

    @contextmanager
    def begin(self) -> Iterator["Written"]:
        """Write; the files are there at the end, all or none."""
        old = [path.name for path in self._folder.glob("model*.safetensors*")]
        with (
            written_together(self._folder, unless_written=old) as beside,
            ExitStack() as stack,
        ):
            self._open: dict[str, IO[bytes]] = {}
            for file, names in self._files.items():
                self._open[file] = stack.enter_context((beside / file).open("wb"))
                self._open[file].write(_head({name: self._kinds[name] for name in names}))
            if len(self._files) > 1:
                total = sum(_size(kind) for kind in self._kinds.values())
                index = {"metadata": {"total_size": total}, "weight_map": self._of}
                (beside / INDEX).write_text(json.dumps(index, indent=2))
            yield self

    def add(self, name: str, whole: Tensor) -> None:
        """Write the next tensor."""
        plain = whole.detach().cpu().contiguous()
        self._open[self._of[name]].write(plain.flatten().view(torch.uint8).numpy().data)


def _size(kind: Kind) -> int:
    shape, dtype = kind
    return prod(shape) * int(getattr(torch, dtype).itemsize)


def _dealt(kinds: Mapping[str, Kind], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    full = 0
    for name, kind in kinds.items():
        if groups[-1] and full + _size(kind) > limit:
            groups.append([])
            full = 0
        groups[-1].append(name)
        full += _size(kind)
    return groups


def _head(kinds: Mapping[str, Kind]) -> bytes:
    """The head of a safetensors file: where each tensor lies, and what it is."""
    told: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype) in kinds.items():
        begin, end = end, end + _size((shape, dtype))
        written_as = _FORMATS.get(getattr(torch, dtype))
        if written_as is None:
            raise ValueError(f"{name!r} is {dtype}, for which safetensors files have no name.")
        told[name] = {"dtype": written_as, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
