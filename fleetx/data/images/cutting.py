"""Parts of decoded images to one batch of one size, on any device.

On a GPU one kernel does it (``cutting_kernel``). Elsewhere, and where kernels cannot be compiled,
the parts are laid side by side and taken to size by one call of torch's ``grid_sample``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.comm.gpu_kernels import has_kernels
from fleetx.data.images.decoding import Part

TOGETHER = 64
"""Images that are brought to size at once: their pixels take four bytes each meanwhile."""


def cut(
    images: Sequence[Tensor], parts: Sequence[Part], mirrored: Sequence[bool], size: tuple[int, int]
) -> Tensor:
    """Bytes of shape batch x 3 x height x width, channels last in memory.

    Pixels are those that OpenCV's ``INTER_LINEAR`` takes from the part alone, as the host does it.

    Args:
        images: bytes of shape 3 x height x width, of any sizes.
        parts: which part of each is seen.
        mirrored: whether left and right change places.
        size: width and height of the result.
    """
    width, height = size
    out = torch.empty(
        (len(images), 3, height, width),
        dtype=torch.uint8,
        device=images[0].device,
        memory_format=torch.channels_last,
    )
    if out.is_cuda and has_kernels():
        from fleetx.data.images.cutting_kernel import cut_by_kernel

        cut_by_kernel(images, parts, mirrored, out)
        return out
    for start in range(0, len(images), TOGETHER):
        group = slice(start, start + TOGETHER)
        pieces = [_piece(*pair) for pair in zip(images[group], parts[group], strict=True)]
        out[group] = _resized(pieces, mirrored[group], size)
    return out


def _piece(image: Tensor, part: Part) -> Tensor:
    """The part, smaller by a whole number as JPEG decoders make it: a mean over squares."""
    by = part.reduction
    piece = image[:, part.top * by : part.bottom * by, part.left * by : part.right * by]
    if by == 1:
        return piece
    smaller = F.avg_pool2d(piece[None].float(), by, ceil_mode=True)[0]
    return smaller.add_(0.5).to(torch.uint8)


def _resized(pieces: Sequence[Tensor], mirrored: Sequence[bool], size: tuple[int, int]) -> Tensor:
    heights, widths = ([piece.shape[side] for piece in pieces] for side in (1, 2))
    device = pieces[0].device
    # Nothing of what lies beside a part is seen, but what is multiplied by zero must be a number.
    together = torch.zeros(
        (len(pieces), 3, max(heights), max(widths)), dtype=torch.uint8, device=device
    )
    for at, piece in enumerate(pieces):
        together[at, :, : heights[at], : widths[at]] = piece
    x = _places(widths, size[0], max(widths), mirrored).to(device)
    y = _places(heights, size[1], max(heights), [False] * len(pieces)).to(device)
    shape = (len(pieces), size[1], size[0])
    grid = torch.stack((x[:, None, :].expand(shape), y[:, :, None].expand(shape)), -1)
    found = F.grid_sample(together.float(), grid, padding_mode="border", align_corners=False)
    return found.add_(0.5).to(torch.uint8)


def _places(lengths: Sequence[int], count: int, longest: int, mirrored: Sequence[bool]) -> Tensor:
    """Where in each part the pixels of the result lie, as ``grid_sample`` counts: from -1 to 1."""
    length = torch.tensor(lengths, dtype=torch.float64)[:, None]
    step = torch.arange(count, dtype=torch.float64)
    steps = torch.where(torch.tensor(mirrored)[:, None], count - 1 - step, step)
    place = ((steps + 0.5) * length / count - 0.5).clamp_(min=0).minimum(length - 1)
    return ((2 * place + 1) / longest - 1).float()
