"""What the module ``fleetx`` has besides its own while an old script runs."""

import importlib
import sys
from types import ModuleType
from typing import Any

HERE = "fleetx.compat.fleetx_1."
MODULES = {
    "applications": "models",
    "utils": "helpers",
    "dataset": "dataset",
    "version": "version",
}
"""Attribute of ``fleetx`` -> module here."""
NAMES = {
    "Trainer": "trainers",
    "CPUTrainer": "trainers",
    "CPUDataLoaderTrainer": "trainers",
    "CPUDatasetTrainer": "trainers",
    "MultiGPUTrainer": "trainers",
    "save_program": "util",
}
"""Attribute of ``fleetx`` -> module here that has it."""


def _module(attribute: str, module: str) -> property:
    def get(self: ModuleType) -> Any:
        return importlib.import_module(HERE + module)

    def put(self: ModuleType, value: Any) -> None:
        vars(self)[attribute] = value  # by whoever imports fleetx's own module of that name

    return property(get, put)


def _name(attribute: str, module: str) -> property:
    def get(self: ModuleType) -> Any:
        return getattr(importlib.import_module(HERE + module), attribute)

    return property(get)


class _Util:
    """``fleetx.util`` of both versions: that of workers, and where programs are saved."""

    def __getattr__(self, name: str) -> Any:
        if name == "save_program":
            return importlib.import_module(f"{HERE}util").save_program
        return getattr(importlib.import_module("fleetx.roles.worker_util").util, name)


class Both(ModuleType):
    """The module ``fleetx`` with the names of both versions."""

    @property
    def util(self) -> Any:
        """What workers do together, and ``save_program``."""
        return _Util()

    @util.setter
    def util(self, value: Any) -> None:
        vars(self)["util"] = value


for _attribute, _from in MODULES.items():
    setattr(Both, _attribute, _module(_attribute, _from))
for _attribute, _from in NAMES.items():
    setattr(Both, _attribute, _name(_attribute, _from))


def attach() -> None:
    """Let ``import fleetx as X`` find what FleetX 1 had."""
    sys.modules["fleetx"].__class__ = Both


def detach() -> None:
    """Take it away again."""
    sys.modules["fleetx"].__class__ = ModuleType
