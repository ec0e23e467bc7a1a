"""Reads and writes spread tensors on a card, as `test_whole_answers.py` does on a CPU.

A script for two workers that NCCL joins on one card, because it is told of two hosts.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.spread import test_whole_answers as answers

ON_THE_HOST: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda p: p.cpu().numpy(),
    "format": lambda p: f"{p.norm().cpu():.4f}",
    "running sum": lambda p: p.cpu().cumsum(-2),
    "nonzero": lambda p: (p.cpu() > 0).nonzero(),
    "number": lambda p: p.norm().cpu().item(),
    "sum": lambda p: p.cpu().sum(),
    "plus one of the host": lambda p: p.cpu() + torch.ones(p.shape, device="cpu"),
}
"""What scripts bring there first, where it stays."""


def differs(name: str, call: Callable[[Tensor], Any], ours: Tensor, plain: Tensor) -> str:
    """What is wrong with what a call makes of a spread tensor, and with where it makes it."""
    try:
        found, wanted = call(ours), call(plain)
        if isinstance(wanted, Tensor) and found.device != wanted.device:
            return f"{name}: on {found.device} and not on {wanted.device}"
        mine, expected = answers.whole(found), answers.whole(wanted)
        if isinstance(expected, str | bool):
            return "" if mine == expected else f"{name}: {mine} and not {expected}"
        np.testing.assert_allclose(mine, expected, 1e-4, 1e-6)
    except Exception:
        return f"{name}: {traceback.format_exc()}"
    return ""


def faults(flag: str) -> list[str]:
    """Of all calls."""
    data, plain = answers.spread(flag).data, answers.weight()
    read = {name: call for name, call in answers.READ.items() if name != "numpy"}
    found = [differs(name, call, data, plain) for name, call in read.items()]
    found += [differs(f"{k} of the host", call, data, plain) for k, call in ON_THE_HOST.items()]
    for name, call in answers.WRITE.items():
        ours, usual = data.clone(), plain.clone()
        found.append(differs(name, call, ours, usual))
        found.append(differs(f"{name}, afterwards", lambda p: p, ours, usual))
    return [f"{flag}, {fault}" for fault in found if fault]


def main() -> None:
    """Of both ways to cut; what differs is printed."""
    rank = os.environ.get("RANK", "0")
    os.environ["NCCL_HOSTID"] = f"worker{rank}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.set_default_device("cuda")
    for name in ("PLACES", "WIDE_PLACES", "MASK", "TWO_ROWS"):
        setattr(answers, name, getattr(answers, name).cuda())
    found = [fault for flag in answers.CUTS for fault in faults(flag)]
    print("\n".join(found), flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
