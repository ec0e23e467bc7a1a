"""The page of a folder, served by the command in a process of its own."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetx.testing.limits import stretched

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Served:
    """Where it is."""

    link: str

    @property
    def root(self) -> str:
        return self.link.partition("?")[0]

    def ask(self, url: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, body, headers."""
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            with _DIRECT.open(request, timeout=stretched(20)) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), dict(error.headers)

    def events(self, until: Callable[[str, Any], bool], query: str = "") -> tuple[str, Any]:
        """Read server-sent events until one is as wanted."""
        with _DIRECT.open(f"{self.root}events{query}", timeout=stretched(30)) as stream:
            name = ""
            for raw in stream:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if until(name, data):
                        return name, data
        raise AssertionError("the stream ended before")


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Served]:
    """Serve a folder, at a free port unless flags say otherwise."""
    flags = flags or ("--at", "127.0.0.1:0")
    command = [sys.executable, "-m", "fleetx.watch", str(folder), *flags, "--until_input_ends"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said + process.stdout.read()
        yield Served(found[0])
    finally:
        process.stdin.close()
        try:
            process.wait(stretched(20))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
