"""The device of this process, and the backend that fits the devices of all."""

import logging
import os

import torch
import torch.distributed as dist

from fleetx.roles.role import Identity

logger = logging.getLogger(__name__)


def choose_device(found: Identity) -> torch.device:
    """The card that the launcher chose, else the one of the local rank, else the CPU."""
    if not found.is_worker or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", card(found, torch.cuda.device_count()))


def card(found: Identity, visible: int) -> int:
    """The index of the card among the visible ones."""
    if found.device_index is None:
        # A scheduler may show each process only its own card, which then has number 0.
        return found.local_rank % visible
    if found.device_index >= visible:
        raise ValueError(
            f"FLAGS_selected_gpus={found.device_index} does not exist: this process sees {visible} "
            "CUDA devices; choose a lower number, or show it more with CUDA_VISIBLE_DEVICES"
        )
    return found.device_index


def card_name(device: torch.device) -> str:
    """A name of the card that no other card has; empty for the CPU.

    NCCL, too, takes one card for two where its workers were told to be on different hosts.
    """
    if device.type != "cuda":
        return ""
    return f"{torch.cuda.get_device_properties(device).uuid}{os.environ.get('NCCL_HOSTID', '')}"


def choose_backend(cards: list[str]) -> str:
    """NCCL where every worker has a card of its own, gloo elsewhere; given all card names."""
    if not any(cards):
        return "gloo"
    reason = _why_not_nccl(cards)
    if reason:
        logger.warning("fleetx: %s; using gloo, which is slower", reason)
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def _why_not_nccl(cards: list[str]) -> str:
    bare = [str(index) for index, name in enumerate(cards) if not name]
    if bare:
        return f"workers {', '.join(bare)} have no CUDA device, so NCCL cannot join all"
    if len(set(cards)) < len(cards):
        return f"{len(cards)} workers share {len(set(cards))} CUDA device(s), which NCCL refuses"
    return "" if dist.is_nccl_available() else "this torch has no NCCL"
