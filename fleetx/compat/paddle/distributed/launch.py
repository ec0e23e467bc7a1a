"""``python -m paddle.distributed.launch``: the flags of all years, for ``fleetrun --paddle``."""

import sys
from collections.abc import Sequence

from fleetx.compat.notes import note
from fleetx.launch.__main__ import main as fleetrun

RENAMED = {
    "--devices": "--gpus",
    "--xpus": "--gpus",
    "--npus": "--gpus",
    "--start_port": "--started_port",
    "--current_node_ip": "--node_ip",
    "--endpoints": "--servers",
    "--worker_endpoints": "--workers",
    "--elastic_timeout": "--timeout",
    "--trainer_num": "--worker_num",
}
"""Flag of Paddle -> the same of fleetrun."""

IDLE = [
    "--log_level",
    "--job_id",
    "--run_mode",
    "--host",
    "--port",
    "--elastic_server",
    "--elastic_pre_hook",
    "--backend",
    "--gloo_port",
    "--with_gloo",
    "--sort_ip",
    "--auto_parallel_config",
    "--elastic_level",
    "--auto_cluster_config",
]
"""Flags with a value that have nothing to set here."""

SWITCHES = ["--print_config", "--legacy", "--force", "--log_overwrite", "--enable_gpu_log"]
"""The same of flags that Paddle gave a value, or none."""

REFUSED = {
    "--heter_workers": "workers of another kind",
    "--heter_worker_num": "workers of another kind",
    "--heter_devices": "devices of several kinds",
    "--coordinators": "coordinators of federated learning",
    "--coordinator_num": "coordinators of federated learning",
}

_BARE = ("-m", "--dry_run", "--use_paddlecloud", "--help", "-h", "--paddle")
"""Flags of fleetrun that take no value."""


def translated(argv: Sequence[str]) -> list[str]:
    """The flags of fleetrun; what comes behind the script is the script's."""
    made: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        flag, joined, value = rest.pop(0).partition("=")
        takes = not joined and _takes_value(flag, rest)
        given = [value] if joined else [rest.pop(0)] if takes else []
        made += _one(flag, given)
    return [*made, *rest]


def _takes_value(flag: str, rest: Sequence[str]) -> bool:
    if flag in _BARE:
        return False
    if flag in SWITCHES:
        return bool(rest) and rest[0].lower() in {"true", "false", "0", "1"}
    return bool(rest)


def _one(flag: str, given: list[str]) -> list[str]:
    if flag in REFUSED:
        raise SystemExit(
            f"paddle.distributed.launch: {flag} is about {REFUSED[flag]}, and all workers of a job "
            "compute alike here; leave it out."
        )
    if flag in IDLE or flag in SWITCHES:
        note(f"paddle.distributed.launch {flag}", "it has nothing to set here.")
        return []
    if flag == "--use_paddlecloud" and given:
        return [flag] if given[0].lower() in {"true", "1"} else []
    if flag in {"--gpus", "--selected_gpus", "--devices"} and given == [""]:
        return []
    return [RENAMED.get(flag, flag), *given]


def launch(argv: Sequence[str] | None = None) -> int:
    """Start the job; returns its exit code."""
    return fleetrun(["--paddle", *translated(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(launch())
