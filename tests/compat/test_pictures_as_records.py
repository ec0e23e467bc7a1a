"""Texts in pictures, read column by column, and names that scripts of Paddle 2 import."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F


def as_records(pictures: Any, **options: Any) -> Any:
    from paddle import fluid

    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, *pictures.shape[1:]], "float32")
        found = fluid.layers.im2sequence(x, **options)
        last = fluid.layers.sequence_last_step(found)
        exe = fluid.Executor(fluid.CPUPlace())
        feed = {"x": pictures}
        return exe.run(feed=feed, fetch_list=[found, last], return_numpy=False)


def test_a_picture_is_a_record_of_its_windows() -> None:
    pictures = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("float32")
    rows, last = as_records(pictures, filter_size=[4, 1], stride=[1, 1])
    columns = pictures.transpose(0, 3, 1, 2).reshape(10, 12)  # all channels of one column
    np.testing.assert_array_equal(np.array(rows), columns)
    assert rows.recursive_sequence_lengths() == [[5, 5]]
    np.testing.assert_array_equal(np.array(last), columns[[4, 9]])


def test_windows_at_the_edges() -> None:
    pictures = np.random.default_rng(0).normal(size=(1, 2, 3, 3)).astype("float32")
    rows, _ = as_records(pictures, filter_size=2, stride=2, padding=[1, 0, 0, 1])
    around = F.pad(torch.from_numpy(pictures), (0, 1, 1, 0))
    wanted = [around[0, :, y : y + 2, x : x + 2].flatten().numpy() for y in (0, 2) for x in (0, 2)]
    np.testing.assert_array_equal(np.array(rows), wanted)
    with pytest.raises(NotImplementedError, match="leave it out"):
        as_records(pictures, input_image_size=torch.ones(1, 2))


def test_names_of_paddle_static_are_those_of_fluid() -> None:
    import paddle
    from paddle import fluid

    assert paddle.static.nn.StaticRNN is fluid.layers.StaticRNN
    assert paddle.static.nn.crf_decoding is fluid.layers.crf_decoding
    assert paddle.static.nn.data_norm is fluid.layers.data_norm
    assert paddle.static.nn.spectral_norm is fluid.layers.spectral_norm
    assert paddle.static.nn.conv3d_transpose is fluid.layers.conv3d_transpose
    assert paddle.static.exponential_decay is fluid.layers.exponential_decay
    assert paddle.static.ctr_metric_bundle is fluid.contrib.layers.ctr_metric_bundle
    assert fluid.WeightedAverage is fluid.average.WeightedAverage
