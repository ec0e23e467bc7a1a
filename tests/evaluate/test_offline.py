"""Vectors are those of the model, whoever computes which of them, and a stopped run goes on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fleetx import roles
from fleetx.__main__ import main
from fleetx.applications import Resnet18
from fleetx.evaluate import offline
from fleetx.evaluate.inputs import Inputs
from fleetx.evaluate.models import Vectors, vectors_of
from fleetx.evaluate.vectors import VectorFile
from fleetx.testing import world
from tests.evaluate.small import direct, export, images, net, reading

MODEL = "tests.evaluate.small:net"
SHAPE = ("--image_shape", "3,16,16", "--resize_short_size", "18", "--batch_size", "4")


def arguments(folder: Path, model: str, output: str = "v.safetensors") -> list[str]:
    where = ("--data_dir", str(folder / "data"), "--output", str(folder / output))
    return ["evaluate", "--model", model, *where, *SHAPE]


def compute(folder: str, fail_after: int | None = None) -> int:
    """Evaluate on this rank; the batches that it computed."""
    roles.start(is_collective=True)
    counted = list[int]()

    def watched(*args: Any) -> Any:
        found = vectors_of(*args)

        def count(batch: torch.Tensor) -> torch.Tensor:
            if fail_after is not None and len(counted) == fail_after:
                raise KeyboardInterrupt
            counted.append(len(batch))
            return found.run(batch)

        return Vectors(count, found.fingerprint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "vectors_of", watched)
        inputs = Inputs(reading(Path(folder) / "data"))
        weights = str(Path(folder) / "weights.safetensors")
        offline.evaluate(
            MODEL, inputs, Path(folder) / "v.safetensors", pretrained=weights, batch_size=4
        )
    return len(counted)


def stopped(folder: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        compute(folder, fail_after=2)


def test_workers_share_the_batches_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    inputs = Inputs(images(tmp_path / "data", 22))
    trained = net(seed=5)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    world(1).run(stopped, str(tmp_path))
    assert not (tmp_path / "v.safetensors").exists()
    # Of six batches the first two are there; each of two workers has done one of its three.
    assert world(2).run(compute, str(tmp_path)) == [2, 2]
    found = VectorFile.load(tmp_path / "v.safetensors")
    torch.testing.assert_close(found.vectors, direct(trained, inputs))
    assert (found.names, found.labels.tolist()) == (inputs.names, inputs.labels)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("data", "v.safetensors", "weights.safetensors"),
    ]


def test_pieces_of_other_weights_are_not_used(tmp_path: Path) -> None:
    inputs = Inputs(images(tmp_path / "data", 9))
    save_file(net(seed=5).state_dict(), tmp_path / "weights.safetensors")
    world(1).run(stopped, str(tmp_path))
    save_file(net(seed=6).state_dict(), tmp_path / "weights.safetensors")
    assert world(1).run(compute, str(tmp_path)) == [3]
    found = VectorFile.load(tmp_path / "v.safetensors")
    torch.testing.assert_close(found.vectors, direct(net(seed=6), inputs))


def in_a_job(given: list[str]) -> int:
    return main(given)


def test_an_exported_folder_gives_the_vectors_of_its_model(tmp_path: Path) -> None:
    inputs = Inputs(images(tmp_path / "data", 6))
    export(net(seed=3).eval(), tmp_path / "exported")
    assert world(1).run(in_a_job, arguments(tmp_path, str(tmp_path / "exported"))) == [0]
    found = VectorFile.load(tmp_path / "v.safetensors")
    torch.testing.assert_close(found.vectors, direct(net(seed=3), inputs))


def test_a_model_by_name_has_as_many_classes_as_its_weights(tmp_path: Path) -> None:
    inputs = Inputs(images(tmp_path / "data", 2))
    torch.manual_seed(4)
    trained = Resnet18(class_dim=7)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    given = [*arguments(tmp_path, "ResNet18"), "--class_dim", "7"]
    given += ["--pretrained_model", str(tmp_path / "weights.safetensors")]
    assert world(1).run(in_a_job, given) == [0]
    found = VectorFile.load(tmp_path / "v.safetensors")
    torch.testing.assert_close(found.vectors, direct(trained, inputs))


def test_an_exported_folder_says_what_its_images_are(tmp_path: Path) -> None:
    given = images(tmp_path / "data", 2)
    export(net().eval(), tmp_path / "exported")
    said = ["--data_dir", str(tmp_path / "data"), "--output", str(tmp_path / "v.safetensors")]
    given_shape = ["evaluate", "--model", str(tmp_path / "exported"), *said]
    assert world(1).run(in_a_job, given_shape) == [0]
    found = VectorFile.load(tmp_path / "v.safetensors")
    assert found.reading == replace(given, resize_short_size=18)  # 8/7 of 16


def complaint(given: list[str]) -> tuple[int, str]:
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(given)
    return code, said.getvalue()


def test_faults_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    images(tmp_path / "data", 2)
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "other.safetensors")
    export(net().eval(), tmp_path / "exported")
    other = ["--pretrained_model", str(tmp_path / "other.safetensors")]
    faults = {
        "cannot be imported": arguments(tmp_path, "no.such.module:net"),
        "has no 'nett'": arguments(tmp_path, "tests.evaluate.small:nett"),
        "must make a torch.nn.Module": arguments(tmp_path, "builtins:list"),
        "is not one of this model": [*arguments(tmp_path, MODEL), *other],
        "with its own weights": [*arguments(tmp_path, str(tmp_path / "exported")), *other],
        "--class_dim 7 would change": [
            *arguments(tmp_path, str(tmp_path / "exported")),
            *("--class_dim", "7"),
        ],
        "there is no list": [*arguments(tmp_path, MODEL), "--list", "none.txt"],
        "must be like '3,224,224'": [*arguments(tmp_path, MODEL), "--image_shape", "3"],
        "and none of ResNet18": arguments(tmp_path, "ResNet19"),
        "--batch_size must be at least 1": [*arguments(tmp_path, MODEL), "--batch_size", "0"],
    }
    for words, given in faults.items():
        ((code, said),) = world(1).run(complaint, given)
        assert code == 2, words
        assert words in said
        assert "Traceback" not in said
