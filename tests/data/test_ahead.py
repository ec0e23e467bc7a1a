"""Work on a thread of its own: the same batches in the same places, failures included."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from fleetx.data import DistributedLoader, distributed_loader
from fleetx.data.ahead import DEPTH, done_ahead


def counted(
    upto: int, asked: list[int], error: Exception | None = None
) -> Iterator[tuple[int, str]]:
    for number in range(upto):
        asked.append(number)
        yield number, f"said of {number}"
    if error is not None:
        raise error


def test_results_come_in_order_from_another_thread() -> None:
    threads: set[int] = set()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        return number * number

    found = list(done_ahead(work, counted(7, [])))
    assert found == [(n * n, f"said of {n}") for n in range(7)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_next_batches_are_worked_on_while_one_is_used() -> None:
    asked: list[int] = []
    seen: dict[int, threading.Event] = {n: threading.Event() for n in range(6)}
    found = done_ahead(lambda n: seen[n].set(), counted(6, asked))
    next(found)
    for number in range(DEPTH + 1):
        assert seen[number].wait(60), "nobody asked for it, and it is done"
    assert asked == [*range(DEPTH + 1)], "and no more is taken than that"
    found.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("fleetx-ahead")]


def test_failures_come_in_their_places() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise ValueError("the work")
        return number

    found = done_ahead(work, counted(5, []))
    assert [next(found)[0], next(found)[0]] == [0, 1]
    with pytest.raises(ValueError, match="the work"):
        next(found)
    later = done_ahead(lambda n: n, counted(1, [], ValueError("the loader")))
    assert next(later)[0] == 0
    with pytest.raises(ValueError, match="the loader"):
        next(later)


def test_a_loader_is_resumed_after_what_it_gave_and_not_after_what_it_did_ahead() -> None:
    def loader() -> DistributedLoader:
        numbers: Any = torch.arange(20)
        plain: DataLoader[Any] = DataLoader(numbers, batch_size=2, shuffle=True)
        return distributed_loader(plain, ahead=lambda batch: batch + 100)

    torch.manual_seed(0)
    first = loader()
    batches = iter(first)
    seen = [next(batches), next(batches)]
    state = first.state_dict()
    rest = list(batches)
    again = loader()
    again.load_state_dict(state)
    resumed = list(again)
    assert torch.equal(torch.cat(resumed), torch.cat(rest))
    assert sorted(torch.cat([*seen, *rest]).tolist()) == [*range(100, 120)]
