"""The cluster at hand: measured once, and remembered for the next job on the same machines."""

import hashlib
import json
import os
import socket
from dataclasses import asdict, fields
from pathlib import Path

import torch

from fleetx.auto.cluster import Cluster, Device, Link, read
from fleetx.plan.error import PlanError
from fleetx.roles.cache import cache_folder

_FIGURES = sorted(one.name for kind in (Device, Link) for one in fields(kind))
"""What is measured: files of versions that measured something else are not read."""


def remembered(device: torch.device, *, workers_here: int, nodes: int) -> Cluster | None:
    """What was measured before with as many workers; None if nobody did, or it cannot be read."""
    return _read(place(device, workers_here=workers_here, nodes=nodes))


def _read(file: Path) -> Cluster | None:
    try:
        return read(json.loads(file.read_text(encoding="utf-8")), str(file))
    except (OSError, ValueError, PlanError):
        return None


def last_remembered(device: torch.device, *, workers_here: int, nodes: int) -> Cluster | None:
    """The same for whoever is no worker itself, and does not know with how many threads they run.

    Those who were measured last are the ones that will run.
    """
    file = place(device, workers_here=workers_here, nodes=nodes)
    found = file.parent.glob(f"{file.stem.rpartition('-')[0]}-*.json")
    for known in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True):
        if (cluster := _read(known)) is not None:
            return cluster
    return None


def remember(cluster: Cluster, device: torch.device) -> None:
    """Keep it for later; a folder that cannot be written is no reason to stop."""
    file = place(device, workers_here=cluster.devices_per_node, nodes=cluster.nodes)
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(cluster), indent=1), encoding="utf-8")
        partial.replace(file)
    except OSError:
        return


def place(device: torch.device, *, workers_here: int, nodes: int) -> Path:
    """The file in which it is kept: another one wherever other figures are to be expected."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    differs = f"{name} {torch.__version__} {workers_here} x {nodes} {_FIGURES}"
    digest = hashlib.sha256(differs.encode()).hexdigest()[:12]
    return cache_folder() / f"cluster-{socket.gethostname()}-{digest}-{threads}.json"
