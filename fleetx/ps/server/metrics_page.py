"""What a server reports, as text that Prometheus reads, over HTTP."""

import contextlib
import http.server
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from typing_extensions import override

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_SERVER = {
    "memory": ("memory_bytes", "gauge", "Memory that the process has."),
    "uptime": ("uptime_seconds", "gauge", "Seconds since the process began to serve."),
    "connections": ("connections", "gauge", "Connections that are open."),
    "dead_workers": ("dead_workers", "gauge", "Workers that count as dead."),
    "largest_lead": ("largest_lead", "gauge", "Updates by which a worker was ahead at most."),
    "age": ("follower_age_seconds", "gauge", "How old the oldest rows of a copy are."),
}
_OF_TABLE = {
    "rows": ("table_rows", "gauge", "Rows that exist."),
    "numbers": ("table_numbers", "gauge", "Numbers of a dense table."),
    "bytes": ("table_bytes", "gauge", "Memory of rows and index."),
    "log_bytes": ("table_log_bytes", "gauge", "Bytes of log since the last checkpoint."),
    "updates": ("table_updates_total", "counter", "Updates."),
    "pulled": ("table_pulled_total", "counter", "Rows, or dense numbers, that were asked for."),
    "pushed": ("table_pushed_total", "counter", "Rows, or dense numbers, gradients came for."),
    "day": ("table_day", "gauge", "Days that were ended by shrink."),
}


def text_of(report: Mapping[str, Any]) -> str:
    """The report of one server in the text format of Prometheus."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for key, (name, kind, text) in _OF_SERVER.items():
        if key in report:
            yield from (*_head(name, kind, text), f"fleetx_ps_{name} {float(report[key]):g}")
    tables: Mapping[str, Mapping[str, Any]] = report.get("tables", {})
    for key, (name, kind, text) in _OF_TABLE.items():
        held = {table: values[key] for table, values in tables.items() if key in values}
        if held:
            yield from _head(name, kind, text)
            for table, value in held.items():
                yield f'fleetx_ps_{name}{{table="{table}"}} {int(value)}'


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP fleetx_ps_{name} {text}", f"# TYPE fleetx_ps_{name} {kind}"


class _Page(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], ask: Callable[[], Mapping[str, Any]]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.ask = ask
        super().__init__(address, _Request)


class _Request(http.server.BaseHTTPRequestHandler):
    server: _Page

    def do_GET(self) -> None:
        """Answer with all figures, at /metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "figures are at /metrics")
            return
        body = text_of(self.server.ask()).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


@contextlib.contextmanager
def served(host: str, port: int, ask: Callable[[], Mapping[str, Any]]) -> Iterator[int]:
    """Serve reports while inside; gives the port, which is a free one if 0 was asked for."""
    try:
        page = _Page((host, port), ask)
    except OSError as error:
        raise ValueError(
            f"metrics_port={port}: nothing can be served at {host}:{port} ({error}); choose a port "
            "that is free"
        ) from error
    thread = threading.Thread(target=page.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(page.server_address[1])
    finally:
        page.shutdown()
        thread.join()
        page.server_close()
