"""Modules that Paddle had under other names as well: scripts of some release import them so."""

MOVED = {
    "paddle.base": "paddle.fluid",
    "paddle.base.core": "paddle.fluid.core",
    "paddle.base.framework": "paddle.fluid.framework",
    "paddle.distributed.fleet.cloud_utils": "paddle.distributed.cloud_utils",
    "paddle.distributed.fleet.data_generator.data_generator": (
        "paddle.distributed.fleet.data_generator"
    ),
    "paddle.distributed.fleet.dataset.dataset": "paddle.distributed.datasets",
    "paddle.distributed.fleet.launch": "paddle.distributed.launch",
    "paddle.distributed.fleet.layers": "paddle.distributed.fleet.meta_parallel",
    "paddle.distributed.fleet.layers.mpu": "paddle.distributed.fleet.meta_parallel",
    "paddle.distributed.fleet.layers.mpu.mp_layers": (
        "paddle.distributed.fleet.meta_parallel.parallel_layers"
    ),
    "paddle.distributed.fleet.layers.mpu.random": "paddle.distributed.fleet.meta_parallel.random",
    "paddle.distributed.fleet.meta_parallel.parallel_layers.mp_layers": (
        "paddle.distributed.fleet.meta_parallel.parallel_layers"
    ),
    "paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers": (
        "paddle.distributed.fleet.meta_parallel.parallel_layers"
    ),
    "paddle.distributed.fleet.meta_parallel.parallel_layers.random": (
        "paddle.distributed.fleet.meta_parallel.random"
    ),
    "paddle.distributed.fleet.recompute": "paddle.distributed.fleet.utils.recomputing",
    "paddle.distributed.launch.__main__": "paddle.distributed.launch",  # what `python -m` runs
    "paddle.distributed.launch.main": "paddle.distributed.launch",
    "paddle.distributed.run": "paddle.distributed.launch",
    "paddle.fluid.contrib.utils.hdfs_utils": "paddle.fluid.contrib.utils",
    "paddle.fluid.dygraph.amp": "paddle.amp",
    "paddle.fluid.dygraph.jit": "paddle.jit.api",
    "paddle.fluid.incubate.fleet.base.mode": "paddle.fluid.incubate.fleet.base.fleet_base",
    "paddle.fluid.incubate.fleet.parameter_server.mode": (
        "paddle.fluid.incubate.fleet.base.fleet_base"
    ),
    "paddle.fluid.incubate.fleet.utils.fleet_util": "paddle.fluid.incubate.fleet.fleet_util",
    "paddle.fluid.incubate.fleet.utils.fs": "paddle.distributed.fleet.utils.fs",
    "paddle.fluid.incubate.fleet.utils.hdfs": "paddle.distributed.fleet.utils.fs",
    "paddle.fluid.transpiler.details.program_utils": "paddle.fluid.transpiler.details",
    "paddle.framework.io": "paddle.framework",
    "paddle.imperative": "paddle.fluid.dygraph",
    "paddle.nn.input": "paddle.static",
    "paddle.incubate.distributed": "paddle.fluid.incubate",
    "paddle.incubate.distributed.fleet": "paddle.fluid.incubate.fleet",
    "paddle.incubate.distributed.fleet.collective": "paddle.fluid.incubate.fleet.collective",
    "paddle.incubate.distributed.fleet.parameter_server": (
        "paddle.fluid.incubate.fleet.parameter_server"
    ),
    "paddle.incubate.distributed.fleet.fleet_util": "paddle.fluid.incubate.fleet.fleet_util",
    "paddle.incubate.distributed.fleet.parameter_server.distribute_transpiler": (
        "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler"
    ),
    "paddle.incubate.distributed.fleet.parameter_server.pslib": (
        "paddle.fluid.incubate.fleet.parameter_server.pslib"
    ),
    "paddle.incubate.distributed.fleet.role_maker": ("paddle.fluid.incubate.fleet.base.role_maker"),
    "paddle.incubate.hapi": "paddle.hapi",
    "paddle.incubate.hapi.callbacks": "paddle.callbacks",
    "paddle.incubate.hapi.metrics": "paddle.metric",
    "paddle.incubate.hapi.model": "paddle.hapi",
    "paddle.incubate.hapi.vision": "paddle.vision",
    "paddle.incubate.hapi.vision.models": "paddle.vision.models",
    "paddle.incubate.hapi.vision.transforms": "paddle.vision.transforms",
    "paddle.utils.profiler": "paddle.fluid.profiler",
}
"""Another name of a module -> the module.

A module that is imported becomes an attribute of the one above it: none of these names is that of
a function or an object there.
"""


def resolved(module: str) -> str:
    """The module that a name stands for, where it or one above it has moved."""
    above, _, last = module.rpartition(".")
    return MOVED.get(module) or (f"{resolved(above)}.{last}" if above else module)


def elsewhere(package: str, name: str) -> str | None:
    """Where a module is that scripts import from a package, under any name of the package."""
    for other, module in MOVED.items():
        above, _, last = other.rpartition(".")
        if last == name and resolved(above) == package:
            return module
    return None


def has_moved_below(module: str) -> bool:
    """Whether modules are imported from below one that is a file here."""
    return any(name.startswith(f"{module}.") for name in MOVED)
