"""Workers of ``fleet.launch(function, on="ray")``: tasks of a Ray cluster that runs already.

Ray decides where they are (a placement group), keeps their resources and ends them. They are told
who they are by torch's variables, as by any launcher.
"""

import importlib
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

READY = 300.0
"""Seconds after which a cluster that has no room for all workers is a mistake."""


def launch_on_ray(
    function: Callable[..., Any], args: Sequence[Any], *, workers: int, gpus_per_worker: int
) -> list[Any]:
    """Call a function on so many workers of the cluster; what it returned, in their order."""
    ray = _ray()
    needs = {"CPU": 1, **({"GPU": gpus_per_worker} if gpus_per_worker else {})}
    group = ray.util.placement_group([needs] * workers, strategy="PACK")
    try:
        _await_room(ray, group, workers, needs)
        where = ray.get([_on(ray, group, at, needs)(_place).remote() for at in range(workers)])
        called = [
            _on(ray, group, at, needs, variables)(_called).remote(function, args)
            for at, variables in enumerate(_variables(where, gpus_per_worker))
        ]
        return _results(ray, called)
    finally:
        ray.util.remove_placement_group(group)


def _ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "fleet.launch(on='ray') needs the package ray, which is not installed: pip install ray",
            name="ray",
        ) from None
    if not ray.is_initialized():
        raise RuntimeError(
            "fleet.launch(on='ray') was called before Ray was connected to; call ray.init() for "
            "this machine, or ray.init(address='auto') for the cluster that it belongs to."
        )
    return ray


def _await_room(ray: Any, group: Any, workers: int, needs: dict[str, int]) -> None:
    if not group.wait(timeout_seconds=READY):
        there = {name: ray.cluster_resources().get(name, 0) for name in needs}
        raise RuntimeError(
            f"fleet.launch(on='ray') waits for {workers} workers with {needs} each, and the "
            f"cluster had no room for them in {READY:g} s; it has {there}. Take fewer."
        )


def _on(
    ray: Any, group: Any, at: int, needs: dict[str, int], variables: dict[str, str] | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function one that runs in a place of the group."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=at
    )
    return lambda function: ray.remote(function).options(
        num_cpus=needs["CPU"],
        num_gpus=needs.get("GPU", 0),
        scheduling_strategy=strategy,
        runtime_env={"env_vars": variables or {}},
        max_retries=0,  # a worker that is started anew could not join the others
    )


def _place() -> tuple[str, int]:
    """The address of this machine in the cluster, and a port that is free there."""
    ray = importlib.import_module("ray")
    with socket.socket() as free:
        free.bind(("", 0))
        return str(ray.util.get_node_ip_address()), int(free.getsockname()[1])


def _called(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    return function(*args)


def _variables(where: Sequence[tuple[str, int]], gpus_per_worker: int) -> list[dict[str, str]]:
    """Who each worker is, by the machines on which they are."""
    hosts = [host for host, _ in where]
    machines, here = list(dict.fromkeys(hosts)), Counter(hosts)
    seen = Counter[str]()
    found = []
    for rank, host in enumerate(hosts):
        found.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(where)),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(here[host]),
                "GROUP_RANK": str(machines.index(host)),
                "GROUP_WORLD_SIZE": str(len(machines)),
                "MASTER_ADDR": where[0][0],
                "MASTER_PORT": str(where[0][1]),
                # Ray shows each worker its own cards alone, so that its card is the first.
                **({"FLAGS_selected_gpus": "0"} if gpus_per_worker else {}),
            }
        )
        seen[host] += 1
    return found


def _results(ray: Any, called: Sequence[Any]) -> list[Any]:
    """What all of them returned; when one fails, the others, which may wait for it, are ended."""
    waiting = list(called)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            ray.get(done)
        results: list[Any] = ray.get(list(called))
        return results
    except BaseException as error:
        for one in waiting:
            ray.cancel(one, force=True)
        if not isinstance(error, ray.exceptions.RayError):
            raise
        worker = called.index(done[0])
        raise RuntimeError(f"worker {worker} of fleet.launch() failed: {error}") from error
