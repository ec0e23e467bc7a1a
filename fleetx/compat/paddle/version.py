"""``paddle.version``: what scripts print, and compare."""

import sys

import torch

full_version = "2.4.2"
major, minor, patch, rc = "2", "4", "2", "0"
istaged = True
commit = "fleetx"
with_mkl = "OFF"

__all__ = ["cuda", "cudnn", "full_version", "major", "minor", "patch", "rc", "show"]


def cuda() -> str:
    """The version of CUDA that torch was built with, or "False"."""
    return str(torch.version.cuda or "False")


def cudnn() -> str:
    """The version of cuDNN, or "False"."""
    return str(torch.backends.cudnn.version() if torch.cuda.is_available() else "False")


def show() -> None:
    """Print them."""
    told = {"full_version": full_version, "major": major, "minor": minor, "patch": patch}
    for name, value in {**told, "cuda": cuda(), "cudnn": cudnn()}.items():
        sys.stdout.write(f"{name}: {value}\n")
