"""Role maker for processes that SLURM's `srun` started."""

import re
from collections.abc import Iterator

from typing_extensions import override

from fleetx.roles.addresses import join_endpoint
from fleetx.roles.environment import Environment
from fleetx.roles.launched import LaunchedRoleMaker
from fleetx.roles.role import Identity

_FIRST_PORT, _PORTS = 12000, 20000
"""Below the range from which Linux hands out ports by itself (32768 and up)."""


class Slurm(LaunchedRoleMaker):
    """One task of a job step; the shell of sbatch or salloc is not one."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        # sbatch gives its shell SLURM_PROCID and SLURM_NTASKS too; only srun makes a step.
        in_step = env.any("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS")
        return in_step and env.has("SLURM_PROCID") and _tasks(env) > 1

    @override
    def workers(self) -> Identity:
        env = self.env
        size, rank = _tasks(env), env.number("SLURM_PROCID")
        if rank >= size:
            raise ValueError(
                f"SLURM_PROCID={rank} does not fit SLURM_NTASKS={size}; "
                "start the script with srun instead of setting these by hand"
            )
        env.agrees("WORLD_SIZE", size, "SLURM_NTASKS")
        local_rank = env.number("SLURM_LOCALID", why="SLURM_PROCID is set")
        return Identity(
            source=f"SLURM job {env.need('SLURM_JOB_ID', 'SLURM_PROCID is set')}",
            is_collective=True,
            index=rank,
            worker_num=size,
            local_rank=local_rank,
            local_size=_tasks_here(env),
            node_num=env.first_number(
                "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", default=0
            ),
            device_index=env.device(),
            rendezvous=join_endpoint(_master_host(env), _master_port(env)),
        )


def _tasks(env: Environment) -> int:
    return env.first_number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", default=1)


def _tasks_here(env: Environment) -> int:
    """Tasks on this machine from a form like 2(x3),1; 0 when SLURM did not say."""
    spread = env.text("SLURM_STEP_TASKS_PER_NODE") or env.text("SLURM_TASKS_PER_NODE")
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", spread):
        counts += [int(tasks)] * int(times or 1)
    node = env.number("SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else 0


def _master_host(env: Environment) -> str:
    """MASTER_ADDR, or the first machine of the step: SLURM puts task 0 there."""
    if env.has("MASTER_ADDR"):
        return env.text("MASTER_ADDR")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = next((env.text(name) for name in names if env.has(name)), "")
    if not hosts:
        raise ValueError(
            "SLURM_NODELIST is not set, so the workers cannot tell where worker 0 is; start the "
            "script with srun, or set MASTER_ADDR to the first machine"
        )
    return next(expand_hosts(hosts))


def _master_port(env: Environment) -> int:
    """MASTER_PORT, or a number that every task of this step derives alike."""
    if env.has("MASTER_PORT"):
        return env.number("MASTER_PORT")
    job = env.number("SLURM_JOB_ID", why="SLURM_PROCID is set")
    # A prime stride keeps the steps of one job apart from each other and from the next job's.
    step = env.first_number("SLURM_STEP_ID", "SLURM_STEPID", default=0)
    return _FIRST_PORT + (job + 7919 * step) % _PORTS


def expand_hosts(names: str) -> Iterator[str]:
    """Yield the machines of a SLURM host list such as node[01-03,7],login or r[1-2]n[1-2]."""
    if names.count("[") != names.count("]"):
        raise ValueError(
            f"host list {names!r} has unbalanced brackets; write it like node[01-03,7]"
        )
    # A comma separates machines only outside brackets.
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        yield from _expand(name.strip())


def _expand(name: str) -> Iterator[str]:
    head, bracket, rest = name.partition("[")
    if not bracket:
        yield head
        return
    choices, _, tail = rest.partition("]")
    for number in _numbers(choices, name):
        for end in _expand(tail):
            yield head + number + end


def _numbers(choices: str, name: str) -> Iterator[str]:
    for choice in choices.split(","):
        first, _, last = choice.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(
                f"host list {name!r}: {choice!r} is not a range; write it like [01-03,7]"
            )
        # Leading zeros are part of the machine's name.
        yield from (f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1))
