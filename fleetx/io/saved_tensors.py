"""The tensors of a checkpoint, read by whoever needs which part of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fleetx.io.chunks import Chunk, chunk_of
from fleetx.io.moved_keys import MEAN, Key
from fleetx.io.shards import Kind, Stored
from fleetx.io.training_state import MARK

Term = tuple[Key, float]
"""A tensor, and how much it counts."""


class Saved:
    """The tensors of a checkpoint, by the names of the whole model."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._keys: dict[str, list[Key]] = {}
        for key in map(Key.parse, sorted(stored.kinds)):
            self._keys.setdefault(key.path, []).append(key)

    @property
    def paths(self) -> Iterable[str]:
        """What there is, whoever had it."""
        return self._keys.keys()

    @cached_property
    def _below(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self._keys:
            # Strategies and gradients are below a word that begins with the mark.
            head = MARK + path.split(MARK)[1] if path.startswith(MARK) else path.split(MARK)[0]
            if path != head:
                found.setdefault(head, []).append(path)
        return found

    def below(self, head: str) -> list[str]:
        """What is kept for a parameter, or under a word for all of them."""
        return self._below.get(head, [])

    def kind(self, path: str) -> Kind:
        """Shape and type."""
        return self._stored.kinds[str(self._keys[path][0])]

    def is_own(self, path: str) -> bool:
        """Whether each share of the data has its own."""
        return bool(self._keys[path][0].how)

    def terms(self, path: str, own: int | None, stage: int) -> list[Term]:
        """What must be added up to get the tensor of a worker.

        Args:
            path: which tensor.
            own: its share of the data, if it takes back what was its own; None for what all shares
                are worth together.
            stage: its stage of the pipeline; as above.
        """
        keys = self._keys[path]
        if own is not None:
            mine = [key for key in keys if not key.how or key.share == own]
            homes = [key for key in mine if key.home == stage]
            return [(key, 1.0) for key in homes or mine if key.home in {None, stage}]
        shares = {key.share for key in keys}
        if keys[0].how != MEAN:
            return [(key, 1.0) for key in keys if key.share == min(shares)]
        return [(key, 1 / len(shares)) for key in keys]

    def whole(self, paths: Iterable[str]) -> dict[str, Tensor]:
        """What all shares are worth together, on the host."""
        kinds = {path: self.kind(path) for path in paths}
        made = {path: torch.empty(kind.shape, dtype=kind.dtype) for path, kind in kinds.items()}
        self.fill(made)
        return made

    @torch.no_grad()
    def fill(
        self, targets: Mapping[str, Tensor], *, own: int | None = None, stage: int = 0
    ) -> None:
        """Read into tensors, which may be spread over workers; ``own`` and ``stage`` as above."""
        chunks = {path: chunk_of(tensor) for path, tensor in targets.items()}
        terms = {path: self.terms(path, own, stage) for path in chunks}
        alone = {path: found[0][0] for path, found in terms.items() if _is_one(found)}
        self._read({key: chunks[path] for path, key in alone.items()})
        rest = {path: found for path, found in terms.items() if path not in alone}
        for path in rest:
            chunks[path].here.zero_()
        # In rounds, so that no more than two of each are in memory.
        for number in range(max(map(len, rest.values()), default=0)):
            now = {path: found[number] for path, found in rest.items() if number < len(found)}
            self._add(chunks, now)

    def _add(self, chunks: Mapping[str, Chunk], terms: Mapping[str, Term]) -> None:
        read = {
            path: replace(chunks[path], here=torch.empty_like(chunks[path].here)) for path in terms
        }
        self._read({key: read[path] for path, (key, _) in terms.items()})
        for path, (_, weight) in terms.items():
            chunks[path].here.add_(read[path].here, alpha=weight)

    def _read(self, targets: Mapping[Key, Chunk]) -> None:
        self._stored.read({str(key): chunk for key, chunk in targets.items()})


def _is_one(terms: Sequence[Term]) -> bool:
    return len(terms) == 1 and terms[0][1] == 1
