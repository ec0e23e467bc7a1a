"""The `fleetrun` command; also `python -m fleetx.launch`."""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fleetx.launch import (
    banner,
    collective,
    meeting_point,
    parameter_server,
    platforms,
    server_numbers,
)
from fleetx.launch.arguments import Arguments, parse
from fleetx.launch.cluster import Job
from fleetx.launch.console import say, warn
from fleetx.launch.errors import Interrupted, LaunchError, raise_on_signals
from fleetx.launch.old_scripts import HASH_SEED, without_cards
from fleetx.launch.page import page
from fleetx.launch.ports import Ports, claim
from fleetx.launch.saving import Saving
from fleetx.launch.server_secrets import check_token
from fleetx.launch.stuck import Limits


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    raise_on_signals()
    try:
        arguments = parse(argv)
        if arguments.meeting_point is not None:
            return meeting_point.keep(arguments.meeting_point)
        with Ports() as ports:
            return launch(arguments, os.environ, ports)
    except LaunchError as error:
        warn(f"error: {error}")
        return error.code
    except Interrupted as signal:
        warn(f"stopped by {signal.name}; all processes of this machine have ended")
        return signal.code


def launch(arguments: Arguments, environ: Mapping[str, str], ports: Ports) -> int:
    """Plans, prints and, unless it is a dry run, starts the job."""
    arguments, notes = platforms.complete(arguments, environ)
    if arguments.paddle:
        arguments, said = without_cards(arguments, environ)
        notes += said
    arguments, said = server_numbers.complete(arguments)
    notes += said
    _check_script(arguments)
    plan = parameter_server.plan if arguments.is_parameter_server() else collective.plan
    job = plan(arguments, environ, ports)
    told = arguments.verbose or arguments.dry_run
    if told:
        say(banner.configuration(arguments))
    for note in notes:
        say(note)
    if arguments.dry_run:
        _describe(job)
        return 0
    check_token(job, environ)
    say(banner.announcement(job) if told else banner.line(job, arguments.log_dir))
    return _start(arguments, job)


def _describe(job: Job) -> None:
    if job.world is None:
        say(banner.announcement(job))
    else:
        say(banner.all_tables(job, job.world, job.world.local))


def _start(arguments: Arguments, job: Job) -> int:
    log_dir = _make_log_dir(arguments.log_dir)
    limits = Limits.of(arguments.stuck_after, os.environ)
    listener = claim(job)
    start = _import_start()
    if arguments.paddle:
        os.environ.setdefault(HASH_SEED, "0")
    with page(arguments, log_dir):
        return start(
            job,
            command(arguments),
            listener=listener,
            log_dir=log_dir,
            max_restart=arguments.max_restart,
            timeout=arguments.timeout,
            limits=limits,
            saving=Saving(arguments.checkpoint_seconds, arguments.grace),
        )


def command(arguments: Arguments) -> tuple[str, ...]:
    """What every process runs behind ``python``; a script of Paddle runs inside of its reader."""
    # A string: the modules that old scripts import stand to the right of all others.
    reader = ("-m", "fleetx.compat") if arguments.paddle else ()
    chosen = ("-m",) if arguments.module else ()
    return (*reader, *chosen, arguments.script, *arguments.script_args)


def _import_start() -> Callable[..., int]:
    """Imports torch only now: everything before answers without its two seconds."""
    level = "TORCH_CPP_LOG_LEVEL"
    quiet = level not in os.environ
    if quiet:  # else a lost connection prints thirty lines of C++ before our sentence
        os.environ[level] = "ERROR"
    from fleetx.launch.start import start

    if quiet:  # read once at import; the workers are not to inherit it
        del os.environ[level]
    return start


def _check_script(arguments: Arguments) -> None:
    name = arguments.script
    if arguments.module and arguments.paddle:
        return  # modules of Paddle are found by the processes alone
    if arguments.module:
        _check_module(name)
    elif not Path(name).is_file():
        kind = "is a folder" if Path(name).is_dir() else "does not exist"
        raise LaunchError(f"the script {name!r} {kind}, so there is nothing to run; check its path")


def _check_module(name: str) -> None:
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name) is not None  # imports the packages above it
    except ValueError:
        found = False
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise _not_importable(name, error) from None
        found = False
    except Exception as error:  # a package may do anything
        raise _not_importable(name, error) from None
    if not found:
        raise LaunchError(f"-m {name} names a module that is not found; check the spelling")


def _not_importable(name: str, error: Exception) -> LaunchError:
    package = name.rpartition(".")[0]
    return LaunchError(
        f"-m {name} needs the package {package}, whose import failed "
        f"({type(error).__name__}: {error}); try python -c 'import {package}'"
    )


def _make_log_dir(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        raise LaunchError(
            f"--log_dir {name} cannot hold the logs ({error.strerror}); choose another folder"
        ) from None
    return folder


if __name__ == "__main__":
    sys.exit(main())
