"""Readers: order, ends, errors, and how far ahead they read."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from fleetx import static
from fleetx.static import EOFException, ProgramError


def inputs() -> tuple[Any, Any]:
    return static.data("x", [None, 2]), static.data("y", [None, 1], "int64")


def samples() -> Iterator[Any]:
    for number in range(5):
        yield [number, number], number


def test_a_loader_gives_feeds_in_order_epoch_after_epoch() -> None:
    x, y = inputs()
    total = (x.sum(1, keepdim=True) + y).sum()
    loader = static.DataLoader.from_generator([x, y], capacity=2)
    loader.set_sample_generator(samples, batch_size=2)
    exe = static.Executor()
    for _ in range(2):
        found = [float(exe.run(feed=feed, fetch_list=[total])[0]) for feed in loader()]
        assert found == [3.0, 15.0]  # the last sample does not fill a batch
    keep = static.DataLoader.from_generator([x, y], drop_last=False)
    keep.set_sample_generator(samples, batch_size=2)
    assert [len(feed["x"]) for feed in keep] == [2, 2, 1]


def test_leaving_a_loop_early_ends_the_thread() -> None:
    x, y = inputs()
    loader = static.DataLoader.from_generator([x, y], capacity=1)
    loader.set_sample_generator(samples, batch_size=1)
    before = threading.active_count()
    for _ in loader:
        break
    assert threading.active_count() == before


def test_a_reader_of_the_program_ends_with_an_exception() -> None:
    reader = static.py_reader(
        capacity=4, shapes=[[-1, 2], [-1, 1]], dtypes=["float32", "int64"], name="reader"
    )
    image, label = static.read_file(reader)
    total = image.sum() + label.sum()
    reader.decorate_paddle_reader(lambda: iter([[([1, 2], 3)], [([4, 5], 6), ([7, 8], 9)]]))
    exe = static.Executor()
    with pytest.raises(ProgramError, match="was not started"):
        exe.run(fetch_list=[total])
    for _ in range(2):
        reader.start()
        found = []
        try:
            while True:
                found.append(float(exe.run(fetch_list=[total], use_program_cache=True)[0]))
        except EOFException:
            reader.reset()
        assert found == [6.0, 39.0]


def test_errors_of_the_generator_reach_the_loop() -> None:
    def broken() -> Iterator[Any]:
        yield np.zeros((1, 2), np.float32), np.zeros((1, 1), np.int64)
        raise KeyError("lost")

    x, y = inputs()
    loader = static.DataLoader.from_generator([x, y]).set_batch_generator(broken)
    with pytest.raises(KeyError, match="lost"):
        list(loader)
    few = static.DataLoader.from_generator([x, y]).set_batch_generator(
        lambda: [np.zeros((1, 2), np.float32)]
    )
    with pytest.raises(ProgramError, match="gave 1 values, but the reader feeds 2: x, y"):
        list(few)


def test_no_more_than_the_capacity_is_read_ahead() -> None:
    given = []

    def counted() -> Iterator[Any]:
        for number in range(100):
            given.append(number)
            yield np.full((1, 2), number, np.float32), np.zeros((1, 1), np.int64)

    x, y = inputs()
    loader = static.DataLoader.from_generator([x, y], capacity=3).set_batch_generator(counted)
    feeds = iter(loader)
    for taken in range(1, 5):
        next(feeds)
        # Taken, waiting in the queue, and one in the reader's hand.
        assert len(given) <= taken + 3 + 1


def test_what_readers_refuse() -> None:
    x, y = inputs()
    with pytest.raises(ValueError, match="return_list"):
        static.DataLoader.from_generator([x, y], return_list=True)
    with pytest.raises(ValueError, match="at least one batch"):
        static.DataLoader.from_generator([x, y], capacity=0)
    with pytest.raises(ProgramError, match="no generator"):
        list(static.DataLoader.from_generator([x, y]))
    with pytest.raises(ProgramError, match="is not started"):
        static.DataLoader.from_generator([x, y]).start()
    reader = static.DataLoader.from_generator([x, y], iterable=False)
    reader.set_sample_generator(samples, 1)
    with pytest.raises(ProgramError, match="feeds its program by itself"):
        iter(reader).__next__()
    reader.start()
    with pytest.raises(ProgramError, match="runs already"):
        reader.start()
    reader.reset()


def test_an_error_of_the_generator_is_raised_again() -> None:
    x = static.data("x", [None, 4])
    out = x + 1
    loader = static.DataLoader.from_generator([x], capacity=1, iterable=False)

    def batches() -> Iterator[np.ndarray]:
        yield np.ones((2, 4), np.float32)
        raise ValueError("a bad file")

    loader.set_batch_generator(batches)
    exe = static.Executor()
    for _ in range(2):
        loader.start()
        exe.run(fetch_list=[out])
        for _ in range(3):
            with pytest.raises(ValueError, match="a bad file"):
                exe.run(fetch_list=[out])
        loader.reset()


def test_a_generator_that_can_be_read_once_has_one_epoch() -> None:
    x, y = inputs()
    setters: list[tuple[Callable[[Any], Any], Callable[[], Iterator[Any]]]] = [
        (lambda loader: partial(loader.set_sample_generator, batch_size=5), samples),
        (lambda loader: loader.set_sample_list_generator, lambda: iter([list(samples())])),
        (lambda loader: loader.set_batch_generator, lambda: iter([[np.ones((2, 2)), [[1], [1]]]])),
    ]
    for setter, make in setters:
        loader = static.DataLoader.from_generator([x, y])
        with pytest.raises(TypeError, match="takes a function that is called for every epoch"):
            setter(loader)(make())
        once = make()
        setter(loader)(lambda once=once: once)
        assert len(list(loader)) == 1
        with pytest.raises(ProgramError, match="returned the same generator for another epoch"):
            list(loader)
        setter(loader)(make)
        assert [len(list(loader)) for _ in range(2)] == [1, 1]


def test_an_epoch_without_a_batch_is_named(caplog: pytest.LogCaptureFixture) -> None:
    x, y = inputs()
    loader = static.DataLoader.from_generator([x, y])
    loader.set_sample_generator(samples, batch_size=9)
    assert list(loader) == []
    assert "the reader of x, y gave no batch in this epoch" in caplog.text


def test_a_stream_may_be_left_and_taken_up_again() -> None:
    x, y = inputs()
    loader = static.DataLoader.from_generator([x, y], capacity=1)
    stream = samples()
    loader.set_sample_generator(lambda: stream, batch_size=1)
    for _ in loader:
        break
    assert 0 < len(list(loader)) < 4
