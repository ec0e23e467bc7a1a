"""Image files decoded, cut, brought to size and normalised on a GPU, whole batches at a time."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fleetx.data.images.cutting import cut
from fleetx.data.images.encoded import EncodedBatch, EncodedImages, Entry, Image
from fleetx.data.images.normalising import Normalise

logger = logging.getLogger(__name__)

Decode = Callable[[list[Tensor], torch.device], list[Tensor]]
"""Bytes of JPEG files -> bytes of shape 3 x height x width on the device."""
_TRIED = 64
"""Images by which the speed of a card is measured."""


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
        decode_jpegs([_drawn(16, 16)], device)
    except ImportError as error:
        return f"torchvision, which calls nvJPEG, is not installed ({error})"
    except RuntimeError as error:
        return f"torchvision cannot call nvJPEG here ({str(error).splitlines()[0]})"
    return ""


@cache
def images_per_second(device: torch.device) -> float:
    """How many photographs of 500 x 375 pixels the card decodes, measured on some."""
    files = [_drawn(500, 375)] * _TRIED
    for _ in range(2):  # what is done for the first time takes longer
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        decode_jpegs(files, device)
        torch.cuda.synchronize(device)
        taken = time.perf_counter() - began
    return _TRIED / taken


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
        images, labels = batch.images(), batch.labels.clone()
        decoded = iter(self._decoded([image for image in images if image.entry.is_encoded]))
        found, entries = list[Tensor](), list[Entry]()
        for at, image in enumerate(images):
            pixels = next(decoded) if image.entry.is_encoded else self._laid(image.data)
            entry = image.entry
            if pixels is None:
                (entry, data), labels[at] = self._source.on_host(entry.number)
                pixels = self._laid(data)
            found.append(pixels)
            entries.append(entry)
        parts, mirrored = [entry.part for entry in entries], [entry.mirrored for entry in entries]
        return cut(found, parts, mirrored, self._size), labels

    def _laid(self, data: Tensor) -> Tensor:
        """Pixels that came from the host."""
        return data.to(self._device).view(self._size[1], self._size[0], 3).permute(2, 0, 1)

    def _decoded(self, images: Sequence[Image]) -> list[Tensor | None]:
        """None for those that the card does not decode, or decodes to another size."""
        if not images:
            return []
        try:
            found: list[Tensor | None] = [
                *self._decode([image.data for image in images], self._device)
            ]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # because of one of them, and nobody says which
            found = [self._alone(image) for image in images]
        return [_if_sized(*pair) for pair in zip(found, images, strict=True)]

    def _alone(self, image: Image) -> Tensor | None:
        try:
            return self._decode([image.data], self._device)[0]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._tell(image.entry.number, str(error).splitlines()[0])
            return None

    def _tell(self, index: int, reason: str) -> None:
        if index not in self._told:
            self._told.add(index)
            path = self._source.images.files.path(index)
            logger.info("%s: the host decodes it, because the card cannot (%s)", path, reason)


def _if_sized(pixels: Tensor | None, image: Image) -> Tensor | None:
    expected = (3, image.entry.height, image.entry.width)
    return pixels if pixels is not None and pixels.shape == expected else None


def _drawn(width: int, height: int) -> Tensor:
    """A JPEG file with as much in it as in a photograph."""
    import cv2

    numbers = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    image = cv2.GaussianBlur(numbers, (0, 0), 1.5)
    return torch.from_numpy(cv2.imencode(".jpg", image)[1].reshape(-1))
