"""Text slots, the data sets over them, and the generator that writes them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fleetx as fleet
from fleetx import Slot, roles
from fleetx.data.slots import Records, parse
from fleetx.testing import world

SLOTS = [Slot("label", "float32"), Slot("ids"), Slot("more")]

GENERATOR = """
import sys
import fleetx as fleet

class Mine(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            label, *words = line.split()
            yield [("label", [int(label)]), ("words", [int(w) for w in words])]
        return samples

Mine().run_from_stdin()
assert "torch" not in sys.modules, "which takes longer to load than most files take to read"
"""


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-9, 9, width=16), min_size=1, max_size=2),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=0, max_size=3),
            st.lists(st.integers(0, 9), min_size=1, max_size=1),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_read(samples: list[tuple[list[float], list[int], list[int]]]) -> None:
    lines = [
        " ".join(f"{len(slot)} {' '.join(map(str, slot))}".strip() for slot in sample) + "\n"
        for sample in samples
    ]
    records = parse("".join(lines).encode(), SLOTS, "here")
    assert len(records) == len(samples)
    for index in range(len(samples)):
        one = records.take(np.array([index])).batch(SLOTS)
        for slot, values in zip(SLOTS, samples[index], strict=True):
            assert one[slot.name].values.tolist() == values
    again = Records.unpacked(records.packed())
    order = np.arange(len(samples))[::-1]
    back = again.take(order).take(order)
    for ours, theirs in zip(back.columns, records.columns, strict=True):
        assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("ragged", [False, True])
def test_any_64_bits_are_an_id(ragged: bool) -> None:
    given = [0, -1, 2**63, 2**64 - 1, 2**63 - 1, -(2**63), 5]
    lines = [f"1 {number}\n" for number in given] + ["2 8 18446744073709551614\n"] * ragged
    ((values, _),) = parse("".join(lines).encode(), [Slot("ids")], "here").columns
    assert values.dtype == np.int64
    wanted = [number - 2**64 if number >= 2**63 else number for number in given]
    assert values.tolist() == wanted + [8, -2] * ragged
    for large in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="does not hold 1 slots"):
            parse(f"1 {large}\n".encode(), [Slot("ids")], "here")


@pytest.mark.parametrize("text", ["1 5\n1 6\n\n", "\n1 5\n\n \t\r\n1 6", "1 5\r\n\r\n1 6\n  "])
def test_blank_lines_are_no_records(text: str) -> None:
    ((values, lengths),) = parse(text.encode(), [Slot("ids")], "here").columns
    assert (values.tolist(), lengths.tolist()) == ([5, 6], [1, 1])
    with pytest.raises(ValueError, match="does not hold 1 slots"):
        parse(b"1 5 1 6\n\n", [Slot("ids")], "here")
    assert len(parse(b"\n \n", [Slot("ids")], "here")) == 0


@pytest.mark.parametrize("text", ["1 2 3 4", "1 0.5 2 7", "1 0.5 1 7 1 8 9", "x", "1 0.5 1 z 1 8"])
def test_lines_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"file\.txt does not hold 3 slots"):
        parse(f"1 0.5 1 7 1 8\n{text}\n".encode(), SLOTS, "file.txt")


def write(folder: Path, count: int, name: str, first: int = 0) -> str:
    path = folder / name
    path.write_text(
        "".join(
            f"1 {i % 2} {1 + i % 3} {' '.join([str(i)] * (1 + i % 3))}\n"
            for i in range(first, first + count)
        )
    )
    return str(path)


def test_batches_of_a_stream(tmp_path: Path) -> None:
    data = fleet.QueueDataset()
    data.init(batch_size=4, use_var=[Slot("label", "float32"), "ids"])
    data.set_filelist([write(tmp_path, 6, "a"), write(tmp_path, 5, "b", 6)])
    batches = list(data)
    assert [len(batch["label"].offsets) for batch in batches] == [4, 4, 3]
    assert batches[0]["label"].dense().tolist() == [[0], [1], [0], [1]]
    assert batches[1]["ids"].values.tolist() == [4, 4, 5, 5, 5, 6, 7, 7]
    assert batches[1]["ids"].offsets.tolist() == [0, 2, 5, 6]
    with pytest.raises(ValueError, match="differ in length"):
        batches[1]["ids"].dense()


def test_memory_and_shuffling(tmp_path: Path) -> None:
    data = fleet.InMemoryDataset()
    data.init(batch_size=8, use_var=[Slot("label", "float32"), "ids"])
    data.set_filelist([write(tmp_path, 50, "a")])
    with pytest.raises(RuntimeError, match="load_into_memory"):
        list(data)
    data.load_into_memory()
    straight = torch.cat([batch["ids"].values for batch in data]).tolist()
    data.local_shuffle()
    mixed = torch.cat([batch["ids"].values for batch in data]).tolist()
    assert mixed != straight
    assert sorted(mixed) == sorted(straight)
    data.global_shuffle()
    assert data.get_memory_data_size() == 50
    data.release_memory()


def test_files_are_read_beside_the_script_and_slots_are_mixed(tmp_path: Path) -> None:
    data = fleet.InMemoryDataset()
    data.init(batch_size=50, use_var=[Slot("label", "float32"), "ids"])
    data.set_filelist([write(tmp_path, 50, "a")])
    with pytest.raises(RuntimeError, match="nothing is being read"):
        data.wait_preload_done()
    data.preload_into_memory()
    data.wait_preload_done()
    (before,) = data
    data.slots_shuffle(["ids"])
    (after,) = data
    assert torch.equal(before["label"].values, after["label"].values)
    assert after["ids"].values.tolist() != before["ids"].values.tolist()
    assert sorted(after["ids"].values.tolist()) == sorted(before["ids"].values.tolist())
    with pytest.raises(ValueError, match="there is no slot 'words'"):
        data.slots_shuffle(["words"])
    with pytest.raises(ValueError, match="one thread reads"):
        data.preload_into_memory(thread_num=4)
    data.load_into_memory(is_shuffle=True)
    (mixed,) = data
    assert mixed["label"].values.tolist() != before["label"].values.tolist()
    data.set_filelist([write(tmp_path, 2, "b")])
    (tmp_path / "b").write_text("oops\n")
    data.preload_into_memory()
    with pytest.raises(ValueError, match="does not hold 2 slots"):
        data.wait_preload_done()


def shuffled(folder: str) -> tuple[list[int], int]:
    roles.start(is_collective=True)
    data = fleet.InMemoryDataset()
    data.init(batch_size=8, use_var=[Slot("label", "float32"), "ids"])
    own = roles.worker_index()
    data.set_filelist([write(Path(folder), 40 + own, f"part{own}", 100 * own)])
    data.load_into_memory()
    data.global_shuffle(fleet)
    ids: list[int] = []
    for batch in data:
        ids += batch["ids"].values[batch["ids"].offsets].tolist()
    return ids, data.get_memory_data_size(fleet)


def test_records_travel_between_workers(tmp_path: Path) -> None:
    found = world(3).run(shuffled, str(tmp_path))
    everything = [i for ids, _ in found for i in ids]
    assert sorted(everything) == [*range(40), *range(100, 141), *range(200, 242)]
    assert {total for _, total in found} == {123}
    for ids, _ in found:
        assert len({i // 100 for i in ids}) == 3, "records of every worker came here"


def test_a_generator_as_pipe_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GENERATOR)
    (tmp_path / "raw.txt").write_text("1 7 8\n0 9\n")
    data = fleet.QueueDataset()
    command = f"{sys.executable} {tmp_path / 'mine.py'}"
    data.init(batch_size=2, use_var=["label", "words"], pipe_command=command)
    data.set_filelist([tmp_path / "raw.txt"])
    (batch,) = data
    assert batch["words"].values.tolist() == [7, 8, 9]
    (tmp_path / "raw.txt").write_text("oops\n")
    with pytest.raises(RuntimeError, match=r"pipe_command .* failed"):
        list(data)


def test_samples_must_be_alike() -> None:
    generator = fleet.MultiSlotDataGenerator()
    assert generator.line([("a", [1, 2]), ("b", [3])]) == "2 1 2 1 3\n"
    with pytest.raises(ValueError, match="the same slots in the same order"):
        generator.line([("b", [3]), ("a", [1])])
    with pytest.raises(ValueError, match="'b' of a sample is empty"):
        generator.line([("a", [1]), ("b", [])])
    with pytest.raises(NotImplementedError, match="generate_sample"):
        generator.generate_sample("x")


def test_training_shows_each_batch_one_step_ahead(tmp_path: Path) -> None:
    data = fleet.QueueDataset()
    data.init(batch_size=1, use_var=["label", "ids"])
    data.set_filelist([write(tmp_path, 4, "a")])
    told: list[Any] = []
    count = fleet.train_from_dataset(
        data,
        lambda batch: told.append(("step", int(batch["ids"].values[0]))),
        ahead=lambda batch: told.append(("ahead", int(batch["ids"].values[0]))),
        report=lambda number, found: told.append(("report", number)),
        print_period=2,
    )
    assert count == 4
    assert told == [
        *(("ahead", 1), ("step", 0), ("ahead", 2), ("step", 1), ("report", 2)),
        *(("ahead", 3), ("step", 2), ("step", 3), ("report", 4)),
    ]


def test_a_generator_leaves_out_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Numbers(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line: str | None) -> Any:
            assert line is not None
            return lambda: iter([None if line.startswith("#") else [("a", [int(line)])], None])

    generator = Numbers()
    generator.set_batch(2)
    monkeypatch.setattr("sys.stdin", ["# a comment\n", "1\n", "2\n", "#\n", "3\n"])
    generator.run_from_stdin()
    assert capsys.readouterr().out == "1 1\n1 2\n1 3\n"


NAMES, VALUES = ("words", "click"), ([1, 2], [1])
SAMPLES: dict[str, Any] = {
    "list": lambda: [*zip(NAMES, VALUES, strict=True)],
    "zip": lambda: zip(NAMES, VALUES, strict=True),
    "generator": lambda: ((n, iter(v)) for n, v in zip(NAMES, VALUES, strict=True)),
    "dict": lambda: dict(zip(NAMES, VALUES, strict=True)),
    "arrays": lambda: [(n, np.array(v)) for n, v in zip(NAMES, VALUES, strict=True)],
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("way", ["function", "generator", "list"])
def test_a_sample_is_any_iterable(
    sample: Any, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zip was written as an empty line, for it was read twice."""

    class Maker(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line: str | None) -> Any:
            if way == "generator":
                return (each for each in (sample(), None))
            return [sample()] if way == "list" else lambda: iter([sample()])

        def generate_batch(self, samples: Any) -> Any:
            return samples if way == "list" else super().generate_batch(samples)

    Maker().run_from_memory()
    assert capsys.readouterr().out == "2 1 2 1 1\n"


@pytest.mark.parametrize(
    ("sample", "match"),
    [
        ([], "yield None for lines that give no record"),
        (zip((), (), strict=True), "has no slot"),
        ([("words", "abc")], "not a list of values"),
        ([("click", 1)], r"yield \('click', \[1\]\)"),
        ([("words", iter([]))], "slot 'words' of a sample is empty"),
        ([1, 2], "pairs of a slot's name"),
    ],
)
def test_samples_that_would_be_broken_lines_are_refused(sample: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        fleet.MultiSlotDataGenerator().line(sample)


@pytest.mark.parametrize("kind", [fleet.QueueDataset, fleet.InMemoryDataset])
def test_a_pass_without_a_batch_names_its_files(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / f"part-{number}" for number in range(5)]
    for path in paths:
        path.write_text("\n\n")
    data = kind()
    data.init(batch_size=2, use_var=["ids"])
    for files in (paths, []):
        caplog.clear()
        data.set_filelist(files)
        if kind is fleet.InMemoryDataset:
            data.load_into_memory()
        assert fleet.train_from_dataset(data, lambda batch: None) == 0
        (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
        assert "no batch" in record.getMessage()
        expected = f"{paths[0]}, {paths[1]}, {paths[2]} and 2 more" if files else "has no files"
        assert expected in record.getMessage()
    paths[0].write_text("1 7\n")
    caplog.clear()
    data.set_filelist(paths)
    if kind is fleet.InMemoryDataset:
        data.load_into_memory()
    assert fleet.train_from_dataset(data, lambda batch: None) == 1
    assert not caplog.records
