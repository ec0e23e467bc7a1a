"""The page over HTTP: it can be read, and nothing else; from elsewhere with a token alone."""

import asyncio
import contextlib
import hashlib
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetx.pages import style
from fleetx.watch.feed import Feed

HOME = Path(__file__).parent / "page"
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
NO_TOKEN = (
    "This page is shown to those who have its link, and the link that you used has no token, or "
    "another one's. Take the whole link that fleetx watch printed.\n"
)
NO_HOST = (
    "This page is served to its own machine alone, under the names localhost, 127.0.0.1 and ::1. "
    "Start it with --at HOST:PORT to reach it under other names.\n"
)


def application(feed: Feed, token: str | None) -> Starlette:
    """The page of a folder.

    Args:
        feed: what it shows.
        token: what whoever asks must know; None where only this machine can ask.
    """

    async def page(request: Request) -> Response:
        return HTMLResponse(_page())

    async def state(request: Request) -> Response:
        return JSONResponse(feed.state())

    async def events(request: Request) -> Response:
        log = request.query_params.get("log", "workerlog.0")
        return StreamingResponse(feed.events(log), media_type="text/event-stream")

    routes = [Route("/", page), Route("/state", state), Route("/events", events)]
    guard = Middleware(Guard, token=token)
    return Starlette(routes=routes, middleware=[guard], lifespan=lambda app: _looking(feed))


@contextlib.asynccontextmanager
async def _looking(feed: Feed) -> AsyncIterator[None]:
    await asyncio.to_thread(feed.look)
    looks = asyncio.create_task(feed.run())
    yield
    looks.cancel()


@cache
def _page() -> str:
    whole = (HOME / "page.html").read_text(encoding="utf-8")
    whole = whole.replace("/*style*/", style() + (HOME / "page.css").read_text(encoding="utf-8"))
    return whole.replace("/*script*/", _script())


@cache
def _script() -> str:
    return (HOME / "page.js").read_text(encoding="utf-8")


def _policy() -> str:
    """What the page may load and run: itself."""
    digest = b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class Guard:
    """Lets through who may ask, and adds what keeps browsers careful."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token
        self._headers = {
            "content-security-policy": _policy(),
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",  # the token is part of the address
            "x-content-type-options": "nosniff",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(k.encode(), v.encode()) for k, v in self._headers.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        if self._token is None:
            # A page of another site could send a browser here under a name of its own.
            host = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname
            return None if host in LOOPBACK else PlainTextResponse(NO_HOST, 403)
        given = parse_qs(scope["query_string"].decode(errors="replace")).get("token", [""])[0]
        if secrets.compare_digest(given.encode(), self._token.encode()):
            return None
        return PlainTextResponse(NO_TOKEN, 403)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK
