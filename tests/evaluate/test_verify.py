"""``fleetx verify`` against MLServer: the right model passes, one changed weight does not."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fleetx.__main__ import main
from fleetx.evaluate.inputs import Inputs, checksum
from fleetx.evaluate.vectors import VectorFile
from fleetx.testing.limits import stretched
from tests.evaluate.small import direct, export, images, net
from tests.ports import free_ports

COUNT = 10


@dataclass(frozen=True)
class Served:
    """A running server with two models, and the vectors of the right one."""

    folder: Path
    rest: str
    grpc: str

    def verify(self, endpoint: str, *more: str) -> int:
        vectors, report = self.folder / "v.safetensors", self.folder / "report"
        given = ["--vectors", str(vectors), "--endpoint", endpoint, "--report", str(report)]
        return main(["verify", *given, "--batch_size", "4", *more])


def settings(folder: Path, rest: int, grpc: int) -> None:
    server = {
        "host": "127.0.0.1",
        "http_port": rest,
        "grpc_port": grpc,
        "metrics_endpoint": None,
        "parallel_workers": 0,
        "use_structured_logging": False,
    }
    (folder / "settings.json").write_text(json.dumps(server))
    for name in ("right", "wrong"):
        model = {
            "name": name,
            "implementation": "fleetx.evaluate.mlserver_runtime.InferenceModel",
            "parameters": {"uri": "."},
        }
        (folder / name / "model-settings.json").write_text(json.dumps(model))


def wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.monotonic()
    while server.poll() is None and time.monotonic() < began + stretched(120):
        try:
            with opener.open(f"{url}/v2/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"MLServer did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    right, wrong = net().eval(), net().eval()
    with torch.no_grad():
        wrong.get_parameter("5.weight")[2, 3] += 0.05
    export(right, folder / "right")
    export(wrong, folder / "wrong")
    inputs = Inputs(images(folder / "data", COUNT))
    sums = torch.tensor([checksum(value) for _, value in inputs])
    labels = torch.tensor(inputs.labels)
    vectors = direct(right, inputs)
    VectorFile(inputs.names, labels, sums, vectors, inputs.reading, "net").save(
        folder / "v.safetensors"
    )
    rest, grpc = free_ports(2)
    settings(folder, rest, grpc)
    log = folder / "log.txt"
    command = "from mlserver.cli import main; main()"
    paths = os.pathsep.join(path for path in sys.path if path)
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", command, "start", str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths},
        )
    try:
        url = f"http://127.0.0.1:{rest}"
        wait(server, url, log)
        yield Served(folder, url, f"grpc://127.0.0.1:{grpc}")
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_the_right_model_passes(
    served: Served, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served.verify(getattr(served, way), "--model_name", "right") == 0
    assert "agrees with the offline vectors on all 10 inputs" in capsys.readouterr().out
    told = json.loads((served.folder / "report.json").read_text())
    assert told["agree"] is True
    assert told["max_abs"] < 1e-5
    assert told["top_k_agreement"] == 1


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_one_changed_weight_fails(
    served: Served, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = served.verify(getattr(served, way), "--model_name", "wrong", "--worst", "3")
    assert code == 1
    assert "does NOT agree" in capsys.readouterr().out
    told = json.loads((served.folder / "report.json").read_text())
    assert (told["agree"], len(told["worst"])) == (False, 3)
    distances = [each["max_abs"] for each in told["worst"]]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] == pytest.approx(told["max_abs"])
    page = (served.folder / "report.html").read_text()
    assert page.count("<img") == 3


def test_a_model_that_is_not_there_is_one_sentence(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served.verify(served.rest, "--model_name", "none") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("fleetx verify: error: ")
    assert "404" in said


def test_a_dead_endpoint_is_one_sentence(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        assert served.verify(endpoint, "--model_name", "right") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert f"nothing answers at {endpoint}" in lines[0]


def test_inputs_that_changed_are_noticed(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images(tmp_path / "data", COUNT)
    other = tmp_path / "data" / "image 3.png"
    other.write_bytes((tmp_path / "data" / "image 4.png").read_bytes())
    more = ("--model_name", "right", "--data_dir", str(tmp_path / "data"))
    assert served.verify(served.rest, *more) == 2
    assert "'image 3.png' is not the input" in capsys.readouterr().err
    images(tmp_path / "data", COUNT - 1)
    assert served.verify(served.rest, *more) == 2
    assert "has changed since the vectors were computed" in capsys.readouterr().err
