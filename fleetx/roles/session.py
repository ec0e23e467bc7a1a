"""The one running job of this process: started, asked about, stopped."""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from fleetx.roles import activity, figures, logs
from fleetx.roles.card_queues import use_all_queues
from fleetx.roles.detection import PaddleCloudRoleMaker
from fleetx.roles.environment import Environment
from fleetx.roles.freed_memory import keep_freed_memory
from fleetx.roles.idle_threads import wait_for_idle_threads
from fleetx.roles.role import Identity, RoleMaker
from fleetx.roles.world import World, close_world, group_identity, open_world

logger = logging.getLogger(__name__)


class NotInitializedError(RuntimeError):
    """Something that needs fleet.init() was called before it."""


@dataclass(frozen=True)
class _Session:
    claimed: Identity
    """What the role maker said, before the peers were asked; a second start must say the same."""
    world: World
    handler: logging.Handler | None
    at_stop: list[Callable[[], None]] = field(default_factory=list)


_running: list[_Session] = []
"""Empty or one session: a process is part of one job at a time."""


def start(role_maker: RoleMaker | None = None, *, is_collective: bool = False) -> Identity:
    """Learn who this process is, meet the other workers, choose the device.

    Args:
        role_maker: who says so; None asks the environment.
        is_collective: whether every process is a worker; a role maker that says so is enough.

    Returns:
        The identity with everything filled in.
    """
    use_all_queues()  # before anything asks for cards
    claimed = _ask(role_maker, is_collective)
    if _running:
        return _again(claimed)
    handler = logs.attach(claimed)
    activity.forget()
    figures.forget()
    try:
        with activity.meeting("fleet.init()"):
            world = open_world(claimed)
    except BaseException:
        logs.detach(handler)
        raise
    _running.append(_Session(claimed, world, handler))
    if world.identity.is_worker and world.device.type == "cpu":
        keep_freed_memory()
    atexit.register(stop)
    _announce(world)
    return world.identity


def started() -> bool:
    """Whether `start` was called, and `stop` not since."""
    return bool(_running)


def at_stop(forget: Callable[[], None]) -> None:
    """Let `stop` call this: whoever keeps something of the job lets it go with the job."""
    _running[0].at_stop.append(forget)


def stop() -> None:
    """Forget the identity and destroy the groups that `start` made."""
    atexit.unregister(stop)
    while _running:
        session = _running.pop()
        for forget in session.at_stop:
            forget()
        if session.world.group is not None:
            wait_for_idle_threads()
        close_world(session.world)
        logs.detach(session.handler)


def identity(query: str = "identity") -> Identity:
    """Who this process is; `query` names the caller in the complaint before fleet.init()."""
    return world(query).identity


def world(query: str) -> World:
    """The running job's groups and device."""
    if not _running:
        raise NotInitializedError(
            f"fleet.{query}() was called before fleet.init(); "
            "call fleet.init(is_collective=True) first"
        )
    return _running[0].world


def refuse_without_servers(what: str) -> None:
    """Complain of a call that needs parameter servers where none were started with us."""
    found = identity()
    if found.is_collective or found.server_endpoints:
        return
    script = Path(sys.argv[0]).name or "train.py"
    raise RuntimeError(
        "fleet.init() was called without is_collective=True, which begins a job with parameter "
        f"servers, but this process was started without any ({found.source}), so {what} is not "
        "possible. To train without servers call fleet.init(is_collective=True); to train with "
        f"them type: fleetrun --server_num 1 --worker_num 1 {script}"
    )


def device() -> torch.device:
    """Where this process computes: its CUDA device, or the CPU."""
    return world("device").device


def _ask(role_maker: RoleMaker | None, is_collective: bool) -> Identity:
    if not isinstance(is_collective, bool):
        raise TypeError(
            f"fleet.init(is_collective={is_collective!r}) is not a bool; pass True or False"
        )
    if role_maker is None:
        return _ask_around(is_collective)
    if not isinstance(role_maker, RoleMaker):
        raise TypeError(
            f"fleet.init(role_maker={role_maker!r}) is no role maker; pass PaddleCloudRoleMaker(), "
            "UserDefinedRoleMaker(...), MPISymetricRoleMaker(), or nothing to detect the launcher"
        )
    claimed = role_maker.identity()
    if is_collective and not claimed.is_collective:
        raise ValueError(
            "fleet.init(is_collective=True) contradicts its role maker, which describes a "
            "parameter-server job; drop is_collective, or pass is_collective=True to the role maker"
        )
    return claimed


def _ask_around(is_collective: bool) -> Identity:
    """Without a role maker: the script's own process group, else the environment."""
    ours = any(session.world.owned for session in _running)
    if is_collective and dist.is_initialized() and not ours:
        env = Environment(os.environ)
        local = env.has("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return group_identity(
            env.number("LOCAL_RANK") if local else 0,
            env.number("LOCAL_WORLD_SIZE") if local else 0,
        )
    return PaddleCloudRoleMaker(is_collective).identity()


def _again(claimed: Identity) -> Identity:
    session = _running[0]
    if claimed != session.claimed:
        raise RuntimeError(
            f"fleet.init() was called before and made this process {_who(session.claimed)}; it "
            f"cannot become {_who(claimed)}; call fleet.init() once, or with the same role maker"
        )
    return session.world.identity


def _who(found: Identity) -> str:
    peers = found.worker_num if found.is_worker else len(found.server_endpoints)
    kind = "collective" if found.is_collective else "parameter-server"
    return f"{found.noun} {found.index} of {peers} in a {kind} job (found by {found.source})"


def _announce(world: World) -> None:
    logger.info(
        "fleetx: %s; backend %s, device %s", _crew(world.identity), world.backend, world.device
    )


def _crew(found: Identity) -> str:
    if found.source.startswith("one process"):
        return found.source
    crew = _count(found.worker_num, "worker")
    if found.server_endpoints:
        crew += f" and {_count(len(found.server_endpoints), 'server')}"
    if found.node_num:
        crew += f" on {_count(found.node_num, 'node')}"
    return f"{crew}, found by {found.source}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
