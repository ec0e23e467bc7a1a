"""Versions, and whether the packages underneath work together."""

import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import fleetx
from fleetx.doctor.finding import Finding, broken, note, ok

OLDEST, NEWEST = (2, 11), (2, 13)
"""The releases of torch that fleetx is tested with."""
PACKAGES = ("numpy", "protobuf", "safetensors", "tqdm")


def versions() -> Iterator[Finding]:
    """fleetx, Python, and the system."""
    yield ok("fleetx", fleetx.__version__)
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    yield ok("system", f"{platform.system()} {platform.release()}, {platform.machine()}")


def torch_version() -> Iterator[Finding]:
    """Whether torch is one that fleetx knows."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield broken(
            "torch",
            f"cannot be imported ({error})",
            "pip install 'torch>=2.11', for a machine without cards from "
            "https://download.pytorch.org/whl/cpu",
        )
        return
    found = (int(part) for part in torch.__version__.split(".")[:2])
    major, minor = found
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    said = f"{torch.__version__}, built {built}"
    if (major, minor) < OLDEST:
        yield broken("torch", said, "fleetx needs 2.11 or newer: pip install -U 'torch>=2.11'")
    elif (major, minor) > NEWEST:
        yield note("torch", said, "newer than any that fleetx was tested with, which is 2.13")
    else:
        yield ok("torch", said)


def packages() -> Iterator[Finding]:
    """Whether arrays and strategies travel through the packages that carry them."""
    said = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    try:
        _use_packages()
    except Exception as error:  # builds that do not fit each other fail in many ways
        yield broken(
            "packages",
            f"{said}: {type(error).__name__}: {error}",
            "install them anew, together: pip install --force-reinstall fleetx",
        )
        return
    yield ok("packages", said)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _use_packages() -> None:
    import tempfile
    from pathlib import Path

    import torch
    from safetensors.torch import load, save

    from fleetx.config.distributed_strategy import DistributedStrategy

    array = torch.arange(3).numpy()  # fails where torch was built for another numpy
    assert torch.equal(torch.from_numpy(array), load(save({"a": torch.arange(3)}))["a"])
    strategy, read = DistributedStrategy(), DistributedStrategy()
    strategy.amp = True
    with tempfile.TemporaryDirectory(prefix="fleetx-doctor-") as folder:
        strategy.save_to_prototxt(Path(folder) / "strategy.prototxt")
        read.load_from_prototxt(Path(folder) / "strategy.prototxt")
    assert read == strategy


def numba() -> Iterator[Finding]:
    """Whether tables of parameter servers are compiled."""
    try:
        from numba import njit
    except ModuleNotFoundError:
        yield note(
            "numba",
            "not installed; tables of parameter servers run in numpy, five times slower",
            "for jobs with servers: pip install 'fleetx[ps]'",
        )
        return
    except ImportError as error:
        yield broken(
            "numba", str(error), "install a numba that fits this numpy: pip install -U numba"
        )
        return

    compiled: Callable[[int], int] = njit(lambda number: 2 * number)
    if compiled(21) != 42:
        yield broken("numba", "compiles wrong code", "install it anew: pip install -U numba")
        return
    yield ok("numba", f"{_version('numba')}, compiles")
