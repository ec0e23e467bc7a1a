"""Cards, the libraries by which workers exchange, and the links between cards."""

from collections.abc import Iterator
from itertools import permutations

import torch
import torch.distributed as dist

from fleetx.doctor.finding import Finding, broken, note, ok
from fleetx.launch import devices
from fleetx.launch.server_numbers import cores

CROWDED = 0.5
"""The part of a card's memory that others may hold before it is worth a word."""


def cards() -> Iterator[Finding]:
    """Every card that torch can use, or why it uses none."""
    if not torch.cuda.is_available():
        yield _no_cards()
        return
    for index in range(torch.cuda.device_count()):
        yield _card(index)


def _no_cards() -> Finding:
    there = devices.hardware()
    if not there:
        return ok("cards", f"none; workers compute on the CPU, {cores()} cores")
    if not devices.count():
        return broken(
            "cards",
            f"{there} in this machine, but torch {torch.__version__} was built without CUDA",
            "install a torch that was built for them: https://pytorch.org/get-started/locally",
        )
    if not devices.here():
        return note(
            "cards",
            f"{there} in this machine, hidden by CUDA_VISIBLE_DEVICES",
            "unset it to use them",
        )
    return broken("cards", _why_unavailable(), "look at nvidia-smi: the driver does not answer")


def _why_unavailable() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch sees none of the cards of this machine"


def _card(index: int) -> Finding:
    name = torch.cuda.get_device_name(index)
    topic = f"card {index}"
    try:
        free, total = torch.cuda.mem_get_info(index)
        right = multiplies(torch.device("cuda", index))
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        return broken(topic, f"{name}: {first}", "look at nvidia-smi, and choose others by --gpus")
    said = f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    if not right:
        return broken(
            topic, f"{said}: multiplies wrongly", "do not use it: choose others by --gpus"
        )
    if free < CROWDED * total:
        return note(topic, said, "other programs hold the rest; nvidia-smi says which")
    return ok(topic, said)


def multiplies(device: torch.device) -> bool:
    """Whether a product comes out as on the CPU; of numbers so small that every sum is exact."""
    numbers = torch.arange(64.0 * 64) % 3 - 1
    square = numbers.view(64, 64)
    found = square.to(device) @ square.to(device)
    return torch.equal(found.cpu().float(), (square.double() @ square.double()).float())


def exchanges() -> Iterator[Finding]:
    """NCCL for cards, gloo for everything else."""
    if dist.is_available() and dist.is_gloo_available():
        yield ok("gloo", "there")
    else:
        yield broken("gloo", "this torch was built without it", "install a release of torch")
    if not torch.cuda.is_available():
        yield ok("NCCL", "not needed without cards")
    elif dist.is_nccl_available():
        yield ok("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield broken(
            "NCCL", "this torch was built without it", "cards exchange by it: install a release"
        )


def links() -> Iterator[Finding]:
    """Whether cards reach each other without going through the host."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return
    pairs = list(permutations(range(count), 2))
    apart = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if not apart:
        yield ok("links", f"all {count} cards reach each other directly")
        return
    one, other = apart[0]
    yield note(
        "links",
        f"{len(apart)} of {len(pairs)} pairs of cards, such as {one} and {other}, exchange through "
        "the host",
        "nvidia-smi topo -m shows how they are joined; on machines with NVLink look at IOMMU / ACS",
    )
