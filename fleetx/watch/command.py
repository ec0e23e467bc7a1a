"""``fleetx watch log/``: a page that shows a job, while it runs and afterwards."""

import argparse
import asyncio
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

    from fleetx.watch.feed import Feed

EXAMPLES = """\
examples:
  fleetx watch                        the job whose logs are in log/, on this machine alone
  fleetx watch log/earlier-1          one that is over
  fleetx watch log --at 0.0.0.0:8600  for other machines; the printed link has a token
"""
USUAL_PORT = 8600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx watch``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("log"),
        help="--log_dir of the job (%(default)s)",
    )
    parser.add_argument(
        "--at",
        metavar="HOST:PORT",
        help=f"where the page is (default: 127.0.0.1:{USUAL_PORT}, or a free port)",
    )
    parser.add_argument("--until_input_ends", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    try:
        import uvicorn

        from fleetx.watch import feed, service
    except ModuleNotFoundError as error:
        return _refuse(
            f"the page is served by starlette and uvicorn, and {error.name} is not installed; "
            "pip install 'fleetx[watch]'"
        )
    if not args.folder.is_dir():
        return _refuse(
            f"there is no folder {str(args.folder)!r}, so there is nothing to watch; pass the "
            "--log_dir of a fleetrun job, which is log by default"
        )
    try:
        host, listening = _listen(args.at)
    except (OSError, ValueError) as error:
        return _refuse(f"--at {args.at} is no address to listen at ({error}); choose another one")
    token = None if service.is_loopback(host) else secrets.token_urlsafe(18)
    shown = feed.Feed(args.folder)
    app = service.application(shown, token)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2, ws="none")
    server = uvicorn.Server(config)
    print(f"fleetx watch: {_link(host, listening, token)}", flush=True)
    asyncio.run(_serve(server, listening, shown, until_input_ends=args.until_input_ends))
    return 0


def _refuse(why: str) -> int:
    print(f"fleetx watch: error: {why}", file=sys.stderr)
    return 2


def _listen(at: str | None) -> tuple[str, socket.socket]:
    """The address, and a socket that listens there."""
    if at is None:
        try:
            return "127.0.0.1", socket.create_server(("127.0.0.1", USUAL_PORT))
        except OSError:
            return "127.0.0.1", socket.create_server(("127.0.0.1", 0))
    name, _, port = at.rpartition(":")
    host = name.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return host, socket.create_server((host, int(port)), family=family)


def _link(host: str, listening: socket.socket, token: str | None) -> str:
    port = listening.getsockname()[1]
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")


async def _serve(
    server: "uvicorn.Server", listening: socket.socket, shown: "Feed", *, until_input_ends: bool
) -> None:
    loop = asyncio.get_running_loop()

    async def end() -> None:
        await shown.close()
        server.should_exit = True

    def watch_input() -> None:
        sys.stdin.buffer.read()
        asyncio.run_coroutine_threadsafe(end(), loop)

    if until_input_ends:
        # Of its own accord: a thread of asyncio's would be waited for.
        threading.Thread(target=watch_input, daemon=True).start()
    await server.serve(sockets=[listening])
