"""Lists are read as they are written, and inputs become the tensors that a network wants."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fleetx.data.images import Images, View
from fleetx.data.images.files import labelled_files
from fleetx.evaluate.inputs import Inputs, Reading, checksum
from tests.evaluate.small import images, reading


def test_a_list_gives_names_labels_and_normalised_centres(tmp_path: Path) -> None:
    # The left half is black, the right half is white; the centre has both.
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 40:] = 255
    Image.fromarray(pixels).save(tmp_path / "a b.png")
    (tmp_path / "val.txt").write_text("a b.png 3\n\na b.png\n")
    inputs = Inputs(Reading(data_dir=str(tmp_path), image_shape=(3, 16, 16), resize_short_size=20))
    assert (inputs.names, inputs.labels) == (["a b.png", "a b.png"], [3, -1])
    name, value = inputs[0]
    assert (name, tuple(value.shape)) == ("a b.png", (3, 16, 16))
    colours = list(zip(View.image_mean, View.image_std, strict=True))
    black = [-mean / std for mean, std in colours]
    white = [(1 - mean) / std for mean, std in colours]
    torch.testing.assert_close(value[:, 8, 2].tolist(), black, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value[:, 8, 13].tolist(), white, rtol=1e-5, atol=1e-5)


def test_a_network_sees_what_it_saw_when_it_was_validated(tmp_path: Path) -> None:
    given = images(tmp_path / "val", 5)
    (tmp_path / "val" / "val.txt").rename(tmp_path / "val.txt")
    inputs = Inputs(replace(given, data_dir=str(tmp_path)))
    images_of = Images(labelled_files(tmp_path, "val"), given.view, train=False)
    validated, labels = images_of.__getitems__(range(5))
    assert labels.tolist() == inputs.labels
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (View.image_mean, View.image_std))
    seen = (inputs.batch(0, 5) * std + mean) * 255
    torch.testing.assert_close(seen, validated.float(), rtol=0, atol=1e-3)


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", array)
    (tmp_path / "val.txt").write_text("x.npy 0\nx.npy 1\n")
    inputs = Inputs(reading(tmp_path))
    assert inputs.batch(0, 2).tolist() == [array.tolist()] * 2


def test_a_reading_survives_as_text(tmp_path: Path) -> None:
    given = replace(reading(tmp_path), list_file="other.txt")
    assert Reading.from_json(given.to_json()) == given


def test_a_checksum_tells_inputs_apart() -> None:
    one = torch.arange(4.0)
    assert checksum(one) == checksum(one.clone())
    assert checksum(one) != checksum(one + 1e-6)


def test_faults_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no list .* set --data_dir"):
        Inputs(reading(tmp_path))
    (tmp_path / "val.txt").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        Inputs(reading(tmp_path))
    images(tmp_path, 1)
    (tmp_path / "val.txt").write_text("gone.png 0\nval.txt 0\n")
    with pytest.raises(FileNotFoundError, match=r"names 'gone\.png', and there is no such file"):
        Inputs(reading(tmp_path))[0]
    with pytest.raises(ValueError, match="is no image that can be read"):
        Inputs(reading(tmp_path))[1]
