"""The flags of `fleetrun`, new and old spellings, as one frozen record."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

from typing_extensions import override

from fleetx.launch import help_zh
from fleetx.launch.errors import USAGE
from fleetx.near_names import nearest_names

AUTO = "auto"
"""Of servers and workers as many as suit the cores of this machine."""
EXAMPLES = """examples:
  fleetrun train.py --lr 0.1                          every card of this machine, or one CPU process
  fleetrun --gpus 0,1,2,3 train.py                    four cards
  fleetrun --nproc_per_node 2 --gpus none train.py    two CPU processes
  fleetrun --ips 10.0.0.1,10.0.0.2 train.py           two machines, the same line on each
  fleetrun --nnodes 2 --master 10.0.0.1:6379 train.py two machines that meet at an address
  fleetrun --server_num 2 --worker_num 2 train.py     parameter servers, tried on one machine
  fleetrun --server_num auto train.py                 servers and workers for the cores at hand
  fleetrun --paddle --gpus 0,1 train.py               a script of Paddle Fleet, unchanged
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the user typed, in one spelling."""

    gpus: str | None = None
    nproc_per_node: int | None = None
    ips: str | None = None
    node_ip: str | None = None
    started_port: int | None = None
    nnodes: str | None = None
    master: str | None = None
    rank: int | None = None
    meeting_point: str | None = None
    use_paddlecloud: bool = False
    endpoints: str | None = None
    """All workers' addresses, where a platform has chosen them; there is no flag for it."""
    servers: str | None = None
    workers: str | None = None
    server_num: int | str | None = None
    worker_num: int | str | None = None
    http_port: int | None = None
    metrics_port: int | None = None
    log_dir: str = "log"
    max_restart: int = 0
    timeout: float = 60.0
    stuck_after: float | None = None
    checkpoint_seconds: float | None = None
    grace: float = 25.0
    watch: bool = False
    watch_at: str | None = None
    dry_run: bool = False
    verbose: bool = False
    paddle: bool = False
    module: bool = False
    script: str = ""
    script_args: tuple[str, ...] = ()

    def is_parameter_server(self) -> bool:
        """True when any flag of a parameter-server job was given."""
        flags = (self.servers, self.workers, self.server_num, self.worker_num)
        flags_of_ports = (self.http_port, self.metrics_port)
        return any(value is not None for value in (*flags, *flags_of_ports))


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, the way the rest of the launcher does."""

    @override
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"fleetrun: error: {message}; see fleetrun --help\n")
        sys.exit(USAGE)


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Reads the command line; exits with code 2 and one sentence when it cannot."""
    parser = _build_parser()
    namespace, unknown = parser.parse_known_args(argv)
    if vars(namespace).pop("help"):  # wherever --lang stands beside it
        _show_help(parser, namespace.lang or help_zh.preferred(os.environ))
    del namespace.lang
    if unknown:
        parser.error(_unknown(unknown[0].partition("=")[0], parser.format_help()))
    if namespace.meeting_point is not None:
        if namespace.command:
            parser.error(
                "--meeting_point starts no script, so leave it out; machines that train "
                "name the place with --master"
            )
        return Arguments(meeting_point=namespace.meeting_point)
    if not namespace.command:
        parser.error("no training script was given, so there is nothing to run; add one at the end")
    values = {name: value for name, value in vars(namespace).items() if value is not None}
    script, *rest = values.pop("command")
    known = {field.name for field in fields(Arguments)}
    assert set(values) <= known, "a flag has no field in Arguments"
    return Arguments(**values, script=script, script_args=tuple(rest))


def _show_help(parser: argparse.ArgumentParser, language: str) -> NoReturn:
    text = help_zh.help_of(parser) if language == "zh" else parser.format_help()
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.exit(0)


def _unknown(flag: str, help: str) -> str:
    """What is said of a flag that does not exist: the nearest one, if any is near."""
    near = nearest_names(flag, re.findall(r"(?<=[\s,])--\w+", help))
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"fleetrun has no flag {flag}{meant}"


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fleetrun",
        usage="fleetrun [flags] train.py [arguments of train.py]",
        description="Starts a distributed PyTorch job: one process per card or per CPU worker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    _add_devices(parser)
    _add_nodes(parser)
    _add_parameter_server(parser)
    _add_general(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes of this machine")
    group.add_argument(
        "--gpus",
        "--selected_gpus",
        "--seletected_gpus",  # spelled so in an official document, hence in people's scripts
        metavar="0,1",
        help="cards to use, one process each; 'none' for CPU (default: all there are, else CPU)",
    )
    group.add_argument(
        "--nproc_per_node",
        type=_positive,
        metavar="N",
        help="processes on this machine (default: the number of cards, on CPU 1)",
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several machines, by a list of addresses")
    group.add_argument(
        "--ips", "--cluster_node_ips", metavar="IP,IP", help="all machines; the order gives ranks"
    )
    group.add_argument(
        "--node_ip", metavar="IP", help="this machine's entry (default: POD_IP, else found)"
    )
    group.add_argument(
        "--started_port",
        type=_port,
        metavar="PORT",
        help="first port of the workers; the launchers meet one below it (default: 6170)",
    )
    group.add_argument(
        "--use_paddlecloud",
        action="store_true",
        help="take the list from PADDLE_TRAINERS, POD_IP, PADDLE_TRAINER_ID and PADDLE_PORT",
    )
    group = parser.add_argument_group("several machines, by a meeting point")
    group.add_argument("--nnodes", metavar="N", help="machines: N, or MIN:MAX (or PADDLE_NNODES)")
    group.add_argument(
        "--master", metavar="HOST:PORT", help="where they meet, on one of them (or PADDLE_MASTER)"
    )
    group.add_argument(
        "--meeting_point",
        metavar="HOST:PORT",
        help="start nothing, and keep this place for the machines of one job, which name it with "
        "--master: none of them is needed by the others then",
    )
    group.add_argument(
        "--rank",
        "--node_rank",
        type=_natural,
        metavar="N",
        help="place of this machine; 0 is the master's (default: decided at the rendezvous)",
    )


def _add_parameter_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parameter servers")
    group.add_argument(
        "--server_num",
        type=_positive_or_auto,
        metavar="N",
        help="servers on this machine; 'auto' chooses for its cores, and workers, too, where "
        "--worker_num is not given",
    )
    group.add_argument(
        "--worker_num",
        "--trainer_num",
        type=_positive_or_auto,
        metavar="N",
        help="workers on this machine; 'auto' chooses for its cores and servers",
    )
    group.add_argument("--servers", metavar="IP:PORT,...", help="all servers of all machines")
    group.add_argument(
        "--workers", "--trainers", metavar="IP[:PORT],...", help="all workers of all machines"
    )
    group.add_argument(
        "--http_port",
        type=_port,
        metavar="PORT",
        help="where the launchers meet (default: one below the first machine's lowest port)",
    )
    group.add_argument(
        "--metrics_port",
        type=_port,
        metavar="PORT",
        help="figures of the first server of this machine for Prometheus, at /metrics; the others "
        "have the next ports (default: nowhere)",
    )


def _add_general(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("general")
    group.add_argument(
        "--log_dir", metavar="DIR", help="workerlog.N and serverlog.N (default: log)"
    )
    group.add_argument(
        "--max_restart",
        type=_natural,
        metavar="N",
        help="how often a failed job starts again, all processes together (default: 0); a script "
        "with a fleet.CheckpointManager goes on from its last checkpoint",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for the other machines (default: 60)",
    )
    group.add_argument(
        "--stuck_after",
        type=_seconds,
        metavar="SECONDS",
        help="end the job when ranks have waited so long for one that stands still (default: "
        "FLEETX_TIMEOUT where it is set; else it is only named)",
    )
    group.add_argument(
        "--checkpoint_seconds",
        type=_seconds,
        metavar="SECONDS",
        help="how often a script with a fleet.CheckpointManager saves, which is what a restart can "
        "lose (default: what the script says, else 600)",
    )
    group.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="how long such a script may take for a last checkpoint after SIGTERM; the exit code "
        "is 75 then, which asks for a restart (default: 25)",
    )
    _add_page(group)
    group.add_argument(
        "--dry_run", action="store_true", help="print who would run where, and start nothing"
    )
    group.add_argument(
        "--verbose", action="store_true", help="print all flags and the variables of a process"
    )
    group.add_argument(
        "--paddle",
        action="store_true",
        help="the script imports paddle, which is served to it for this run by fleetx.compat",
    )
    group.add_argument(
        "-m", dest="module", action="store_true", help="run a module: fleetrun -m package.train"
    )
    group.add_argument(
        "--lang",
        choices=help_zh.LANGUAGES,
        help="language of this help: en or zh (default: by LC_ALL, LC_MESSAGES or LANG); errors "
        "are in English",
    )
    group.add_argument("-h", "--help", action="store_true", help="show this help and exit")


def _add_page(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--watch",
        action="store_true",
        help="serve a page that shows the job while it runs, and print its address (needs "
        "fleetx[watch]); fleetx watch DIR does the same at any time",
    )
    group.add_argument(
        "--watch_at",
        metavar="HOST:PORT",
        help="the same page at an address that other machines reach; the link that is printed has "
        "a token, without which nobody sees anything (default: 127.0.0.1 and a free port)",
    )


def _natural(text: str) -> int:
    return _bounded(text, 0, 2**31)


def _positive(text: str) -> int:
    return _bounded(text, 1, 2**31)


def _positive_or_auto(text: str) -> int | str:
    return AUTO if text == AUTO else _positive(text)


def _port(text: str) -> int:
    return _bounded(text, 1, 65535)


def _bounded(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is outside {low}..{high}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} seconds is not a time to wait")
    return value
