"""Answers of services that are dead, broken or of another kind are one sentence."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fleetx.evaluate.clients import service_at
from fleetx.evaluate.service import Service, ServiceError

BATCH = np.ones((2, 3), np.float32)


def service(endpoint: str) -> Service:
    return service_at(endpoint, "net", input_name="x", timeout=5)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tensor(shape: list[int], data: list[float]) -> bytes:
    output = {"name": "y", "datatype": "FP32", "shape": shape, "data": data}
    return json.dumps({"model_name": "net", "outputs": [output]}).encode()


def test_a_right_answer_is_vectors() -> None:
    with answering(200, tensor([2, 2], [1, 2, 3, 4])) as endpoint:
        assert service(endpoint).infer(BATCH).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"out of memory", "answered 500 .*: out of memory"),
        (404, b'{"error": "Model net not found"}', "answered 404 .*Model net not found"),
        (200, b"<html>", "did not answer with JSON"),
        (200, b"[1]", "which is no JSON object"),
        (200, b'{"outputs": []}', "answered without a tensor of numbers"),
        (200, tensor([1, 2], [1, 2]), "one vector for each input"),
        (200, tensor([2, 2], [1, 2]), "one vector for each input"),
    ],
)
def test_a_wrong_answer_is_told(status: int, body: bytes, words: str) -> None:
    with answering(status, body) as endpoint, pytest.raises(ServiceError, match=words):
        service(endpoint).infer(BATCH)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_dead_endpoint_is_one_sentence(scheme: str, free_port: Callable[[], int]) -> None:
    endpoint = f"{scheme}://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceError, match=f"nothing answers at {endpoint} .*start the service"):
        service(endpoint).infer(BATCH)


def test_other_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="ftp://x is no address; give http://host:port"):
        service("ftp://x")


@pytest.fixture
def free_port() -> Iterator[Callable[[], int]]:
    """Ports on which nobody listens, kept from others for the time of a test."""
    taken = []

    def take() -> int:
        held = socket.socket()
        held.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        taken.append(held)
        return int(held.getsockname()[1])

    yield take
    for held in taken:
        held.close()
