"""Image files decoded, cut, brought to size and normalised on a GPU, whole batches at a time."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fleetx.data.images.cutting import cut
from fleetx.data.images.decoding import Part
from fleetx.data.images.encoded import EncodedBatch, EncodedImages, Entry
from fleetx.data.images.normalising import Normalise

logger = logging.getLogger(__name__)

Decode = Callable[[list[Tensor], torch.device], list[Tensor]]
"""Bytes of JPEG files -> bytes of shape 3 x height x width on the device."""


def decode_jpegs(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """By nvJPEG, through torchvision: in the decoding engines of a card that has some."""
    from torchvision.io import ImageReadMode, decode_jpeg

    found: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
    return found


@cache
def lacking(device: torch.device) -> str:
    """Why images cannot be decoded there, as the end of a sentence; empty if they can."""
    if device.type != "cuda":
        return f"this worker computes on {device.type!r}, and not on an NVIDIA GPU"
    try:
        decode_jpegs([_any_jpeg()], device)
    except ImportError as error:
        return f"torchvision, which calls nvJPEG, is not installed ({error})"
    except RuntimeError as error:
        return f"torchvision cannot call nvJPEG here ({str(error).splitlines()[0]})"
    return ""


class CardDecoder:
    """Makes batches of files batches of images; ``work`` is for a thread of its own.

    Args:
        source: where the batches come from; it decodes on the host what the card does not.
        device: of the results.
        decode: turns files to pixels; by default ``decode_jpegs``.
    """

    def __init__(
        self, source: EncodedImages, device: torch.device, decode: Decode | None = None
    ) -> None:
        self._source, self._device, self._decode = source, device, decode or decode_jpegs
        self._size = source.images.view.size
        self._normalise = Normalise(source.images.view)
        # Small kernels beside the large ones of training: they go first, and take little of it.
        on_card = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if on_card else None
        self._used: deque[torch.cuda.Event] = deque()
        self._told: set[int] = set()
        # Its kernel is compiled now: later, a thread would do so beside a model that is compiled.
        blank = torch.zeros(3, 1, 1, dtype=torch.uint8, device=device)
        cut([blank], [Part(0, 0, 1, 1)], [False], self._size)

    def work(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Images as floats, and labels, both complete on the device."""
        with self._on_stream():
            pixels, labels = self._pixels(batch)
            found = self._normalise((pixels, labels.to(self._device)))
            # torchvision decodes on a stream of its own, into memory that is free on this one: it
            # must be free in truth before the next batch begins.
            self._finish()
        return found

    def hand_over(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The same batch, for the stream of the thread that asks for it."""
        self._source.pace.give()
        if self._stream is None:
            return batch
        current = torch.cuda.current_stream(self._device)
        for tensor in batch:
            tensor.record_stream(current)
        # A host that is far ahead of its card would pile up batches there.
        event = torch.cuda.Event(blocking=True)
        event.record(current)
        self._used.append(event)
        if len(self._used) > 2:
            self._used.popleft().synchronize()
        return batch

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _finish(self) -> None:
        if self._stream is not None:
            event = torch.cuda.Event(blocking=True)  # leaves the core to others
            event.record(self._stream)
            event.synchronize()

    def _pixels(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Bytes of the batch's size, and labels, which are other ones in place of broken images."""
        entries, labels = batch.entries(), batch.labels.clone()
        decoded = iter(self._decoded([e for e in entries if e.is_encoded], batch.encoded()))
        ready = iter(batch.pixels.to(self._device).permute(0, 3, 1, 2).unbind())
        images = [next(decoded if entry.is_encoded else ready) for entry in entries]
        for at, image in enumerate(images):
            if image is None:
                entries[at], pixels, labels[at] = self._source.on_host(entries[at].number)
                images[at] = pixels.to(self._device).permute(2, 0, 1)
        parts, mirrored = [entry.part for entry in entries], [entry.mirrored for entry in entries]
        return cut(
            [image for image in images if image is not None], parts, mirrored, self._size
        ), labels

    def _decoded(self, entries: Sequence[Entry], files: list[Tensor]) -> list[Tensor | None]:
        """None for those that the card does not decode, or decodes to another size."""
        if not files:
            return []
        try:
            found: list[Tensor | None] = [*self._decode(files, self._device)]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # because of one of them, and nobody says which
            found = [self._alone(*pair) for pair in zip(entries, files, strict=True)]
        return [_if_sized(*pair) for pair in zip(found, entries, strict=True)]

    def _alone(self, entry: Entry, file: Tensor) -> Tensor | None:
        try:
            return self._decode([file], self._device)[0]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._tell(entry.number, str(error).splitlines()[0])
            return None

    def _tell(self, index: int, reason: str) -> None:
        if index not in self._told:
            self._told.add(index)
            path = self._source.images.files.path(index)
            logger.info("%s: the host decodes it, because the card cannot (%s)", path, reason)


def _if_sized(pixels: Tensor | None, entry: Entry) -> Tensor | None:
    expected = (3, entry.height, entry.width)
    return pixels if pixels is not None and pixels.shape == expected else None


def _any_jpeg() -> Tensor:
    import cv2

    return torch.from_numpy(cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].reshape(-1))
