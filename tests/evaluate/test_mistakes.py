"""What people type by mistake ends in one sentence, with the exit code for it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fleetx as fleet
from fleetx.__main__ import main
from fleetx.applications import VGG16, Resnet18
from fleetx.applications.vgg import STAGES
from fleetx.evaluate.inputs import Inputs, checksum
from fleetx.evaluate.models import vectors_of
from fleetx.evaluate.vectors import VectorFile
from fleetx.evaluate.weights import load_weights
from fleetx.io import save_checkpoint
from fleetx.testing import world
from tests.evaluate.small import SIDE, direct, images, net
from tests.evaluate.test_offline import MODEL, arguments, complaint


@contextmanager
def speaking(bytes_sent: bytes) -> Iterator[int]:
    """A port where something else than HTTP is spoken."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(bytes_sent)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        thread.join(10)


def verify(folder: Path, *more: str) -> int:
    """``fleetx verify`` with vectors of one image."""
    inputs = Inputs(images(folder / "data", 1))
    sums = torch.tensor([checksum(value) for _, value in inputs])
    found = VectorFile(
        inputs.names, torch.zeros(1), sums, direct(net(), inputs), inputs.reading, "net"
    )
    found.save(folder / "v.safetensors")
    given = ["--vectors", str(folder / "v.safetensors"), "--report", str(folder / "report")]
    return main(["verify", *given, *more])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("fleetx verify: error: ")]
    assert len(lines) == 1, said
    return lines[0]


def test_the_port_for_grpc_is_not_that_for_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18)  # with which HTTP/2 begins
    with speaking(frame) as port:
        assert verify(tmp_path, "--endpoint", f"http://127.0.0.1:{port}") == 2
    assert "does not speak HTTP" in (said := told(capsys))
    assert "grpc://host:port" in said


@pytest.mark.parametrize("endpoint", ["http://localhost:80a0", "grpc://localhost:80a0", "http://"])
def test_no_address(endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path, "--endpoint", endpoint) == 2
    assert f"--endpoint {endpoint} is no address" in told(capsys)


def test_other_files_are_no_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.pth").write_bytes(b"PK\x03\x04" + bytes(100))
    save_file({"x": torch.ones(1)}, tmp_path / "w.safetensors")
    for name, words in (("w.pth", "no safetensors file"), ("w.safetensors", "not written by")):
        given = ["--vectors", str(tmp_path / name), "--endpoint", "http://127.0.0.1:1"]
        assert main(["verify", *given]) == 2
        assert words in told(capsys)


def test_a_fault_of_ours_is_no_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("fleetx.evaluate.verify.answers", broken)
    assert verify(tmp_path, "--endpoint", "http://127.0.0.1:1") == 2
    assert "KeyError: 'ours'" in capsys.readouterr().err


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    images(tmp_path / "data", 2)
    save_file(Resnet18(class_dim=10).state_dict(), tmp_path / "ten.safetensors")
    torch.save(net().state_dict(), tmp_path / "w.pth")
    (tmp_path / "empty").mkdir()
    weights = "--pretrained_model"
    faults = {
        "or set --class_dim to the": ["ResNet18", weights, str(tmp_path / "ten.safetensors")],
        "is no safetensors file": [MODEL, weights, str(tmp_path / "w.pth")],
        "has no file in it": [MODEL, weights, str(tmp_path / "empty")],
        "begins with random weights": ["ResNet18"],
        "makes its own; leave it out": [MODEL, "--class_dim", "7"],
    }
    for words, (model, *more) in faults.items():
        ((code, said),) = world(1).run(complaint, [*arguments(tmp_path, model), *more])
        assert code == 2, said
        assert words in said
        assert "Traceback" not in said


def trained(folder: str) -> list[list[float]]:
    """Write a checkpoint after one step; what its model answers."""
    fleet.init(is_collective=True)
    model: Any = fleet.distributed_model(net(seed=8), criterion=nn.functional.cross_entropy)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), 0.1))
    model.train_batch((torch.randn(4, 3, SIDE, SIDE), torch.tensor([0, 1, 2, 3])))
    save_checkpoint(folder, model, optimizer, step=1)
    model.eval()
    with torch.no_grad():
        found: list[list[float]] = model(torch.ones(1, 3, SIDE, SIDE)).tolist()
    return found


def test_a_checkpoint_gives_the_weights_of_the_model(tmp_path: Path) -> None:
    (expected,) = world(1).run(trained, str(tmp_path))
    written = tmp_path / "checkpoint-1"
    assert len(list(written.iterdir())) > 1, "there is more in it than weights"
    with torch.no_grad():
        vectors = vectors_of(MODEL, str(written), torch.device("cpu"))
        found = vectors.run(torch.ones(1, 3, SIDE, SIDE))
    torch.testing.assert_close(found, torch.tensor(expected))


def torchvision_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All layers of the stages numbered in one row."""
    places = [f"features.{at}.{each}." for at, n in enumerate(STAGES) for each in range(2 * n + 1)]
    renamed = {}
    for name, value in state.items():
        place = next((each for each in places if name.startswith(each)), None)
        at = "" if place is None else f"features.{places.index(place)}."
        renamed[at + name.removeprefix(place or "")] = value
    return renamed


def test_published_weights_of_vgg_fit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained, found = (VGG16(class_dim=2, width=1, hidden=2) for _ in range(2))
    state = torchvision_names(trained.state_dict())
    assert "features.28.weight" in state
    save_file(state, tmp_path / "vgg.safetensors")
    load_weights(found, tmp_path / "vgg.safetensors", "")
    assert all(
        torch.equal(found.state_dict()[name], value) for name, value in trained.state_dict().items()
    )
    save_file({**state, "features.34.weight": torch.ones(1)}, tmp_path / "vgg19.safetensors")
    with pytest.raises(ValueError, match=r"has \['features\.34\.weight'\], which"):
        load_weights(found, tmp_path / "vgg19.safetensors", "")


def factory_with_weights() -> nn.Module:
    return net(seed=1)


def warned(given: list[str]) -> tuple[int, str]:
    import contextlib
    import io
    import logging

    with contextlib.redirect_stderr(io.StringIO()) as said:
        logging.basicConfig(stream=said, force=True)
        code = main(given)
    return code, said.getvalue()


def test_weights_that_only_the_factory_knows_are_spoken_of(tmp_path: Path) -> None:
    images(tmp_path / "data", 2)
    model = f"{__name__}:factory_with_weights"
    ((code, said),) = world(1).run(warned, arguments(tmp_path, model))
    assert code == 0
    assert "must have loaded its weights itself" in said
