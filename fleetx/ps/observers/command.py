"""``fleetx ps``: looks at the servers of a running job, and keeps copies of what they hold."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what it takes is loaded when it is needed: torch alone takes two seconds
    from fleetx.ps.observers.follower import Follower

EXAMPLES = """\
examples:
  fleetx ps report 10.0.0.1:6001                 tables, memory, log and rates of a server
  fleetx ps follow 10.0.0.1:6001,10.0.0.2:6001 --listen 127.0.0.1:7001
                                                 keep a copy, and serve it to inference models:
                                                 load_inference_model(..., follow="127.0.0.1:7001,
                                                 127.0.0.1:7002")

FLEETX_PS_TOKEN must be that of the job, and FLEETX_PS_CERT its certificate if it has one (follow
serves with it, too, and needs FLEETX_PS_KEY for that).
"""

LAST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx ps``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    _add_report(tasks.add_parser("report", help="what servers hold and do"))
    _add_follow(tasks.add_parser("follow", help="keep a copy of what servers hold, and serve it"))


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("servers", metavar="HOST:PORT,...", help="one server, or several")
    parser.add_argument("--json", action="store_true", help="all of it, for a script")
    parser.add_argument("--prometheus", action="store_true", help="as Prometheus reads it")


def _add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "servers", metavar="HOST:PORT,...", help="all servers of the job, in its order"
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="where to serve the copy of the first server; those of the others have the next ports",
    )
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)"
    )
    parser.add_argument(
        "--metrics_port", type=int, metavar="PORT", help="figures for Prometheus, at /metrics"
    )


def run(args: argparse.Namespace) -> int:
    """Do one of the tasks."""
    try:
        return _report(args) if args.task == "report" else _follow(args)
    except (OSError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"fleetx ps {args.task}: {error}\n")
        return 1


def _report(args: argparse.Namespace) -> int:
    from fleetx.ps.observers.follower import endpoints_of
    from fleetx.ps.observers.server_reader import ServerReader, observing
    from fleetx.ps.server.metrics_page import text_of
    from fleetx.roles import secrets

    endpoints = endpoints_of(args.servers)
    access = observing(secrets.job_token(endpoints), secrets.client_tls())
    found: dict[str, Any] = {}
    for endpoint in endpoints:
        reader = ServerReader(endpoint, access)
        found[endpoint] = reader.call({"method": "describe"})
        reader.close()
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for endpoint, report in found.items():
        print(text_of(report) if args.prometheus else in_words(endpoint, report), end="")
    return 0


def in_words(endpoint: str, report: dict[str, Any]) -> str:
    """The report of one server as a table."""
    lines = [
        f"server {endpoint}: process {report['pid']}, {_size(report['memory'])} of memory, up "
        f"for {report['uptime']:,.0f} s, {report['connections']} connections, "
        f"dead workers: {report['dead'] or 'none'}"
    ]
    columns = ("table", "holds", "memory", "log", "updates", "pulled/s", "pushed/s")
    rows = [columns, *(_row(name, each) for name, each in report["tables"].items())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines) + "\n"


def _row(name: str, table: dict[str, Any]) -> tuple[str, ...]:
    holds = f"{table['rows']:,} rows" if "rows" in table else f"{table['numbers']:,} numbers"
    memory = _size(table.get("bytes", 4 * table.get("numbers", 0)))
    rates = [f"{table.get(f'{each}_per_s', 0.0):,.0f}" for each in ("pulled", "pushed")]
    return name, holds, memory, _size(table["log_bytes"]), f"{table['updates']:,}", *rates


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _follow(args: argparse.Namespace) -> int:
    from fleetx.ps.observers.follower import Follower
    from fleetx.ps.observers.relay import Relay

    host, port = _address(args.listen)
    with Follower(args.servers, every=args.every) as follower:
        _check_ports(port, args.metrics_port, len(follower.endpoints))
        relay = Relay(follower, host, port, metrics_port=args.metrics_port)
        with relay:
            print(f"following {', '.join(follower.endpoints)}", flush=True)
            if relay.figures:
                print(f"figures at {relay.figures}", flush=True)
            follower.wait()
            print(_ready(follower, relay.endpoints), flush=True)
            relay.run()
    return 0


def _address(listen: str) -> tuple[str, int]:
    from fleetx.roles.addresses import split_endpoint

    host, _, port = listen.rpartition(":")
    if host and port == "0":  # free ones, which are printed
        return host.strip("[]"), 0
    return split_endpoint(listen, where="--listen")


def _check_ports(port: int, metrics_port: int | None, servers: int) -> None:
    if port + servers - 1 > LAST_PORT:
        raise ValueError(
            f"--listen with port {port} leaves no ports for the copies of {servers} servers, which "
            f"have one each; pass a port up to {LAST_PORT + 1 - servers}"
        )
    if metrics_port is not None and not 0 <= metrics_port <= LAST_PORT:
        raise ValueError(f"--metrics_port {metrics_port}: pass a port from 1 to {LAST_PORT}")


def _ready(follower: "Follower", endpoints: list[str]) -> str:
    tables = {name for copy in follower.copies for name in copy.handler.figures()}
    return f"serving {', '.join(sorted(tables)) or 'no table yet'} at {','.join(endpoints)}"
