"""Layers that step along records, and blocks that a run repeats, against Paddle 2.6.2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

GOLDEN = json.loads((Path(__file__).parent / "data" / "records.json").read_text())
"""What operators of Paddle's own executor gave, once."""

LENGTHS = [3, 1, 4]
Feeds = dict[str, tuple[np.ndarray, list[int] | None]]


def given(name: str, dtype: str = "float32") -> np.ndarray:
    return np.array(GOLDEN[name], dtype)


def run(build: Callable[[dict[str, Any]], Any], feeds: Feeds) -> list[Any]:
    """What a program gives for arrays, of which some are records with these lengths."""
    from paddle import fluid

    variables = {}
    for name, (array, lengths) in feeds.items():
        level = 0 if lengths is None else 1
        shape = [None, *array.shape[1:]]
        variables[name] = fluid.data(name, shape, str(array.dtype), lod_level=level)
    wanted = build(variables)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {
        name: array if lengths is None else fluid.create_lod_tensor(array, [lengths])
        for name, (array, lengths) in feeds.items()
    }
    wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    found: list[Any] = exe.run(feed=feed, fetch_list=wanted, return_numpy=False)
    return found


def starts(name: str, upto: int | None = None) -> Any:
    from paddle import fluid

    array = given(name)[:, :upto] if upto else given(name)
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(array))


def layers() -> Any:
    from paddle import fluid

    return fluid.layers


CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], list[str], Any]] = {
    "lstm": (
        lambda v: layers().dynamic_lstm(v["x4"], 12, v["h0"], v["c0"], starts("w4"), starts("b7")),
        ["x4", "h0", "c0"],
        "lstm",
    ),
    "lstm backwards": (
        lambda v: layers().dynamic_lstm(
            v["x4"],
            12,
            v["h0"],
            v["c0"],
            starts("w4"),
            starts("b7", 12),
            use_peepholes=False,
            is_reverse=True,
            gate_activation="sigmoid",
            cell_activation="sigmoid",
            candidate_activation="relu",
        ),
        ["x4", "h0", "c0"],
        "lstm_reverse",
    ),
    "gru": (
        lambda v: layers().dynamic_gru(v["x3"], 3, starts("w3"), starts("b3"), h_0=v["h0"]),
        ["x3", "h0"],
        "gru",
    ),
    "gru backwards": (
        lambda v: layers().dynamic_gru(
            v["x3"], 3, starts("w3"), starts("b3"), True, h_0=v["h0"], origin_mode=True
        ),
        ["x3", "h0"],
        "gru_reverse",
    ),
    "crf": (
        lambda v: layers().linear_chain_crf(v["e"], v["lab"], starts("tr")),
        ["e", "lab"],
        ["crf", 1],
    ),
    "tags": (
        lambda v: [
            layers().crf_decoding(v["e"], starts("tr")),
            layers().crf_decoding(v["e"], starts("tr"), v["lab"]),
        ],
        ["e", "lab"],
        "decode",
    ),
    "spans": (
        lambda v: layers().chunk_eval(v["inf"], v["lb"], "IOB", 2),
        ["inf", "lb"],
        "chunk",
    ),
    "distances": (
        lambda v: layers().edit_distance(v["inf"], v["target"]),
        ["inf", "target"],
        "edit",
    ),
    "tree of classes": (
        lambda v: layers().hsigmoid(v["hx"], v["hl"], 6, starts("hw"), starts("hb")),
        ["hx", "hl"],
        "hsigmoid",
    ),
    "teacher": (
        lambda v: layers().teacher_student_sigmoid_loss(v["tx"], v["ts"]),
        ["tx", "ts"],
        "teacher",
    ),
}
WHOLE = {"lab", "inf", "lb", "target", "hl"}
PLAIN = {"h0", "c0", "hx", "hl", "tx", "ts"}


def feeds_of(names: list[str]) -> Feeds:
    return {
        name: (
            given(name, "int64" if name in WHOLE else "float32"),
            None if name in PLAIN else [2, 1, 2] if name == "target" else LENGTHS,
        )
        for name in names
    }


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_paddle(case: str) -> None:
    build, names, wanted = CASES[case]
    expected = GOLDEN[wanted] if isinstance(wanted, str) else GOLDEN[wanted[0]][: wanted[1]]
    found = run(build, feeds_of(names))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array(mine).shape == np.shape(theirs)
        assert np.allclose(np.array(mine), np.array(theirs), atol=2e-6)


def test_records_are_cut_joined_and_laid_out_as_in_paddle() -> None:
    two = np.array([[1], [0], [2]], "int64"), np.array([[2], [1], [1]], "int64")

    def build(v: dict[str, Any]) -> list[Any]:
        nn = layers()
        padded, lengths = nn.sequence_pad(v["s"], nn.fill_constant([1], "float32", 0.5))
        return [
            nn.sequence_concat([v["s"], v["s"]]),
            nn.sequence_enumerate(v["i"], win_size=2, pad_value=9),
            nn.sequence_slice(v["s"], v["o"], v["n"]),
            nn.sequence_reshape(v["x"], 6),
            nn.sequence_scatter(v["m"], v["i"], v["u"]),
            padded,
            nn.sequence_unpad(padded, lengths),
        ]

    found = run(
        build,
        {
            "s": (given("s1"), LENGTHS),
            "i": (given("inf", "int64"), LENGTHS),
            "o": (two[0], None),
            "n": (two[1], None),
            "x": (given("x3")[:, :3], [2, 2, 4]),
            "m": (given("m"), None),
            "u": (given("u"), LENGTHS),
        },
    )
    for mine, theirs in zip(found, GOLDEN["seqs"], strict=True):
        assert np.allclose(np.array(mine), np.array(theirs), atol=2e-6)
    lengths = [value.recursive_sequence_lengths() for value in found]
    assert lengths == [[[6, 2, 8]], [LENGTHS], [[2, 1, 1]], [[1, 1, 2]], [], [], [LENGTHS]]


def test_a_block_of_steps_is_the_layer_that_does_the_same() -> None:
    from paddle import fluid

    def build(v: dict[str, Any]) -> list[Any]:
        nn = fluid.layers
        steps = nn.DynamicRNN()
        with steps.block():
            row = steps.step_input(v["x3"])
            before = steps.memory(init=v["h0"])
            hidden, _, _ = nn.gru_unit(row, before, 9, starts("w3"), starts("b3"))
            steps.update_memory(before, hidden)
            steps.output(hidden)
        return [steps()]

    (found,) = run(build, feeds_of(["x3", "h0"]))
    assert np.allclose(np.array(found), GOLDEN["gru"][0], atol=2e-6)
    assert found.recursive_sequence_lengths() == [LENGTHS]


def test_steps_along_the_first_dimension_learn() -> None:
    from paddle import fluid

    nn = fluid.layers
    x = fluid.data("x", [5, None, 3], "float32")
    steps = nn.StaticRNN()
    with steps.step():
        row = steps.step_input(x)
        before = steps.memory(shape=[-1, 4], batch_ref=row)
        hidden = nn.fc([row, before], 4, act="tanh", bias_attr=False)
        steps.update_memory(before, nn.dropout(hidden, 0.5))
        steps.step_output(hidden)
    found = steps()
    loss = nn.mean(found)
    tests = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": np.random.default_rng(0).normal(size=(5, 2, 3)).astype("float32")}
    names = [p.name for p in fluid.default_main_program().all_parameters()]
    w, u, got = exe.run(tests, feed=feed, fetch_list=[*names, found])
    state, expected = np.zeros((2, 4), "float32"), []
    for row in feed["x"]:
        state = np.tanh(row @ w + state @ u)
        expected.append(state)
        state = state * 0.5  # dropout of Paddle 1, in a test
    assert np.allclose(got, np.array(expected), atol=1e-6)
    (first,) = exe.run(tests, feed=feed, fetch_list=[loss])
    for _ in range(10):
        exe.run(feed=feed, fetch_list=[loss])
    assert exe.run(tests, feed=feed, fetch_list=[loss])[0] < first - 0.01


def test_a_cell_runs_to_the_end_of_each_sequence() -> None:
    from paddle import fluid

    nn = fluid.layers
    x = fluid.data("x", [None, None, 3], "float32")
    length = fluid.data("length", [None], "int64")
    cell = nn.LSTMCell(4)
    outputs, (hidden, _) = nn.rnn(cell, x, sequence_length=length)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((2, 3, 3), "float32"), "length": np.array([1, 3], "int64")}
    every, last = exe.run(feed=feed, fetch_list=[outputs, hidden])
    assert np.allclose(last, [every[0, 0], every[1, 2]])
    assert not np.allclose(last[0], last[1])


def test_beams_are_the_likeliest_sequences() -> None:
    from paddle import fluid

    nn, words, end = fluid.layers, 5, 1
    scores = np.random.default_rng(1).normal(size=(words, words)).astype("float32")

    class Cell(nn.RNNCell):  # type: ignore[misc, name-defined]
        """Scores of the next word, by the word before."""

        def call(self, inputs: Any, states: Any) -> Any:
            """One step."""
            return inputs, states

    state = fluid.data("state", [None, 1], "float32")
    rows = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(scores))
    decoder = nn.BeamSearchDecoder(
        Cell(),
        start_token=0,
        end_token=end,
        beam_size=3,
        embedding_fn=lambda ids: fluid.embedding(ids, [words, words], param_attr=rows),
    )
    found, _ = nn.dynamic_decode(decoder, state, max_step_num=2)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    (ids,) = exe.run(feed={"state": np.zeros((2, 1), "float32")}, fetch_list=[found])
    assert np.array_equal(ids[0], ids[1])
    steps = F.log_softmax(torch.from_numpy(scores), -1).numpy()

    def score(path: list[int]) -> float:
        total, before = 0.0, 0
        for word in path:
            total += steps[before, word]
            before = word
            if word == end:
                break
        return total

    every = np.stack(np.meshgrid(*[range(words)] * 3, indexing="ij"), -1).reshape(-1, 3)
    ended = {tuple(r[: r.index(end) + 1] if end in r else r) for r in every.tolist()}
    best = sorted(ended, key=lambda path: -score(list(path)))[0]
    assert ids[0, :, 0].tolist()[: len(best)] == list(best)


def test_a_model_with_steps_is_kept_for_this_process(tmp_path: Path) -> None:
    from paddle import fluid

    x = fluid.data("x", [None, 12], "float32", lod_level=1)
    hidden, _ = fluid.layers.dynamic_lstm(x, 12)
    last = fluid.layers.sequence_last_step(hidden)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(given("x4"), [LENGTHS])}
    (before,) = exe.run(feed=feed, fetch_list=[last])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [last], exe)
    weight = fluid.global_scope().find_var("lstm_0.w_0").get_tensor()
    weight.set(np.zeros((3, 12), "float32"), fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
        (after,) = exe.run(program, feed={feeds[0]: feed["x"]}, fetch_list=fetches)
    assert feeds == ["x"]
    assert np.allclose(before, after)


def test_six_is_there_for_scripts_that_import_it() -> None:
    import six  # type: ignore[import-untyped]
    import six.moves.cPickle as pickle  # type: ignore[import-untyped]
    from six.moves import xrange

    assert dict(six.iteritems({1: 2})) == {1: 2}
    assert isinstance("", six.string_types)
    assert list(xrange(2)) == pickle.loads(pickle.dumps([0, 1]))
    assert sys.modules["six"] is six
