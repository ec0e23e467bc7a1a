"""Running programs: start-up, feeds, fetches, clones, pruning, several programs at once."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static
from fleetx.static import ProgramError
from fleetx.static.run.executions import executions

BATCH = {"x": np.ones((3, 4), np.float32)}


def perceptron() -> tuple[Tensor, Tensor]:
    x = static.data("x", [None, 4])
    hidden = static.nn.dropout(static.nn.fc(x, 8, activation="relu"), 0.5)
    return x, static.nn.fc(hidden, 1).mean()


def started(exe: static.Executor | None = None) -> static.Executor:
    exe = exe or static.Executor(static.CPUPlace())
    exe.run(static.default_startup_program())
    return exe


def test_programs_run_under_their_guard() -> None:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        _, loss = perceptron()
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
        nodes = len(main.graph.nodes)
        exe = static.Executor()
        exe.run(startup)
        for _ in range(2):
            assert exe.run(main, BATCH, [loss])[0].shape == ()
        assert len(main.graph.nodes) == nodes
        assert isinstance(loss + 1, static.Variable)


def test_layers_have_values_only_after_start_up() -> None:
    _, loss = perceptron()
    exe = static.Executor()
    with pytest.raises(ProgramError, match=r"fc_0, fc_1 have no values yet"):
        exe.run(feed=BATCH, fetch_list=[loss])
    torch.manual_seed(0)
    started(exe)
    torch.manual_seed(0)
    expected = nn.Linear(4, 8), nn.Linear(8, 1)
    found = static.default_main_program().parameters()
    for ours, theirs in zip(found, [p for m in expected for p in m.parameters()], strict=True):
        assert torch.equal(ours, theirs)


def test_start_up_again_draws_again() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    x, _ = perceptron()
    exe = started()
    first = [p.detach().clone() for p in static.default_main_program().parameters()]
    started(exe)
    second = static.default_main_program().parameters()
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with static.program_guard(static.default_main_program()):
        Custom()(x)
    started(exe)
    with pytest.raises(ProgramError, match=r"'custom_0' \(Custom\) has no reset_parameters"):
        started(exe)


def test_a_seed_of_the_start_up_program() -> None:
    perceptron()
    static.default_startup_program().random_seed = 7
    exe = started()
    first = [p.detach().clone() for p in static.default_main_program().parameters()]
    started(exe)
    for a, b in zip(first, static.default_main_program().parameters(), strict=True):
        assert torch.equal(a, b)


BAD_FEEDS: list[tuple[Any, str]] = [
    ({"y": 1}, "'y', which is no input"),
    ({}, "feed lacks 'x'"),
    ({"x": np.ones((3, 4))}, "float64, but .* declared as torch.float32; .*astype"),
    ({"x": np.ones((3, 5), np.float32)}, r"shape \[3, 5\], but .* \[None, 4\]"),
    ({"x": np.ones(4, np.float32)}, r"shape \[4\]"),
    ([BATCH, BATCH], "list of 2 dicts"),
]


@pytest.mark.parametrize(("feed", "message"), BAD_FEEDS)
def test_feeds_are_checked(feed: Any, message: str) -> None:
    _, loss = perceptron()
    with pytest.raises(ProgramError, match=message):
        started().run(feed=feed, fetch_list=[loss])


def test_only_needed_inputs_are_fed() -> None:
    x, out = perceptron()
    loss = F.mse_loss(out, static.data("y", []))
    exe = started()
    assert exe.run(feed=BATCH, fetch_list=[out])[0].shape == ()
    with pytest.raises(ProgramError, match="feed lacks 'y'"):
        exe.run(feed=BATCH, fetch_list=[loss])
    assert exe.run(feed=[BATCH], fetch_list=x)[0].shape == (3, 4)


def test_what_was_fed_is_not_changed() -> None:
    x = static.data("x", [None, 4])
    view = x[:, 0]
    view.add_(1)
    out = nn.ReLU(inplace=True)(static.data("z", [2])) + x.sum()
    feed = {"x": np.ones((3, 4), np.float32), "z": np.array([-1, 1], np.float32)}
    for _ in range(2):
        found = static.Executor().run(feed=feed, fetch_list=[out])[0]
        assert found.tolist() == [15.0, 16.0]
    assert feed["x"].sum() == 12
    assert feed["z"].tolist() == [-1, 1]


def test_forward_programs_keep_no_graph_behind_a_no_grad_region() -> None:
    x = static.data("x", [None, 4])
    with torch.no_grad():
        scale = x.abs().max()
    out = nn.Linear(4, 2)(x / scale)
    (found,) = static.Executor().run(feed=BATCH, fetch_list=[out], return_numpy=False)
    program = static.default_main_program()
    run = next(iter(executions(program).forward.values()))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        raw = run._lowered((torch.ones(3, 4),))[0]  # type: ignore[attr-defined]
    assert raw.grad_fn is None
    assert not found.requires_grad


def test_the_cache_trusts_feeds_after_the_first_run() -> None:
    _, loss = perceptron()
    exe = started()
    wide = {"x": np.ones((3, 4))}
    with pytest.raises(ProgramError, match="float64"):
        exe.run(feed=wide, fetch_list=[loss], use_program_cache=True)
    exe.run(feed=BATCH, fetch_list=[loss], use_program_cache=True)
    with pytest.raises(RuntimeError, match="dtype"):  # torch itself finds out, not the check
        exe.run(feed=wide, fetch_list=[loss], use_program_cache=True)


def test_a_clone_for_tests_drops_nothing_and_keeps_statistics() -> None:
    x = static.data("x", [None, 4])
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    out = F.dropout(model(x), 0.5)
    loss = out.mean()
    program = static.default_main_program()
    test = program.clone(for_test=True)
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe = started()
    batch = torch.randn(6, 4)
    for _ in range(2):
        exe.run(program, {"x": batch}, [loss])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = exe.run(test, {"x": batch}, [out])[0]
    assert model.training
    with torch.no_grad():
        assert np.array_equal(found, model.eval()(batch).numpy())
    model.train()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    exe.run(program, {"x": batch}, [loss])
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])  # type: ignore[arg-type]


def test_dropout_of_attention_is_frozen_too() -> None:
    x = static.data("x", [None, 2, 5, 4])
    out = F.scaled_dot_product_attention(x, x, x, None, 0.5)
    by_name = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    test = static.default_main_program().clone(for_test=True)
    batch = torch.randn(3, 2, 5, 4)
    expected = F.scaled_dot_product_attention(batch, batch, batch).numpy()
    for found in static.Executor().run(test, {"x": batch}, [out, by_name]):
        assert np.array_equal(found, expected)
    noisy = static.Executor().run(None, {"x": batch}, [out])[0]
    assert not np.array_equal(noisy, expected)


def test_lstm_dropout_is_frozen_too() -> None:
    x = static.data("x", [None, 5, 4])
    lstm = nn.LSTM(4, 6, 2, dropout=0.5, batch_first=True)
    out, _ = lstm(x)
    test = static.default_main_program().clone(for_test=True)
    batch = torch.randn(3, 5, 4)
    first, second = (static.Executor().run(test, {"x": batch}, [out])[0] for _ in range(2))
    assert np.array_equal(first, second)


def test_pruning_leaves_what_leads_to_the_targets() -> None:
    x, out = perceptron()
    loss = F.mse_loss(out, static.data("y", []))
    program = static.default_main_program()
    pruned = program.prune([x], [out])
    assert list(pruned.inputs()) == ["x"]
    assert len(pruned.graph.nodes) < len(program.graph.nodes)
    assert "mse_loss" not in str(pruned)
    assert loss.name == "mse_loss"  # type: ignore[attr-defined]
    middle = program.prune(["relu"], [out]).clone(for_test=True)
    assert list(middle.inputs()) == ["relu"]
    exe = started()
    ones = np.ones((2, 8), np.float32)
    layer = static.default_main_program().state.trained()
    expected = (ones @ layer["fc_1.weight"].detach().numpy().T + layer["fc_1.bias"].item()).mean()
    assert float(exe.run(middle, {"relu": ones}, [out])[0]) == pytest.approx(float(expected))


def test_programs_are_printed_and_drawn(tmp_path: Any) -> None:
    with static.device_guard("gpu:0"):
        _, loss = perceptron()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    text = str(static.default_main_program())
    assert "parameter fc_0.weight: float32[8, 4]" in text
    assert "relu: float32[s" in text
    assert " on gpu:0  # test_executor.py:" in text
    assert "minimize mean over fc_0.weight" in text
    static.default_main_program().draw(str(tmp_path / "program.dot"))
    drawn = (tmp_path / "program.dot").read_text()
    assert drawn.startswith("digraph")
    assert '"x" -> "fc_0"' in drawn


def test_different_fetches_belong_to_one_training() -> None:
    x, loss = perceptron()
    static.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9).minimize(loss)
    exe = started()
    bias = static.default_main_program().state.trained()["fc_1.bias"]
    start = bias.item()
    exe.run(feed=BATCH, fetch_list=[loss])
    exe.run(feed=BATCH, fetch_list=[])
    gradient, rate, again = exe.run(feed=BATCH, fetch_list=["fc_1.bias@GRAD", "learning_rate_0", x])
    assert gradient.tolist() == [1.0]
    assert float(rate) == pytest.approx(0.1)
    assert again.shape == (3, 4)
    assert bias.item() == pytest.approx(start - 0.1 * (1 + 1.9 + 2.71), abs=1e-6)


def test_two_programs_train_parts_of_the_same_parameters() -> None:
    """As in a GAN: each program moves its own part and leaves no gradients behind."""
    maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
    programs = []
    for trained in (maker, judge):
        program = static.Program()
        with static.program_guard(program):
            loss = judge(maker(static.data("z", [None, 2]))).mean()
            static.Optimizer(torch.optim.SGD, lr=0.1).minimize(
                loss, parameter_list=list(trained.parameters())
            )
        programs.append(program)
    exe = static.Executor()
    feed = {"z": np.ones((3, 2), np.float32)}
    for program, still in zip(programs, (judge, maker), strict=True):
        before = [p.detach().clone() for p in still.parameters()]
        exe.run(program, feed)
        for p, old in zip(still.parameters(), before, strict=True):
            assert torch.equal(p, old)
            assert p.grad is None
            assert p.requires_grad


def test_no_grad_set_stops_gradients_at_variables_and_parameters() -> None:
    x = static.data("x", [None, 4])
    hidden = static.nn.fc(x, 8)
    loss = static.nn.fc(hidden, 1).mean()
    _, pairs = static.Optimizer(torch.optim.SGD, lr=0.1).minimize(
        loss, no_grad_set=[hidden, "fc_1.bias"]
    )
    assert ("fc_1.weight", "fc_1.weight@GRAD") in pairs
    assert not any(name == "fc_1.bias" for name, _ in pairs)
    exe = started()
    first = {
        n: p.detach().clone() for n, p in static.default_main_program().state.trained().items()
    }
    exe.run(feed=BATCH, fetch_list=[loss])
    moved = [
        name
        for name, p in static.default_main_program().state.trained().items()
        if not torch.equal(p, first[name])
    ]
    assert moved == ["fc_1.weight"]


def test_what_minimize_refuses() -> None:
    x, loss = perceptron()
    sgd = static.Optimizer(torch.optim.SGD, lr=0.1)
    with pytest.raises(TypeError, match="takes a variable"):
        sgd.minimize(torch.ones(1))
    with pytest.raises(ProgramError, match=r"take its mean\(\) or sum\(\)"):
        sgd.minimize(x)
    with pytest.raises(ProgramError, match="depends on no parameter"):
        sgd.minimize(x.sum())
    with pytest.raises(TypeError, match="has no option momentumm"):
        static.Optimizer(torch.optim.SGD, lr=0.1, momentumm=0.9)
    sgd.minimize(loss)
    with pytest.raises(ProgramError, match="has an optimizer already"):
        sgd.minimize(loss)


def test_a_torch_optimizer_over_parameters_of_the_program() -> None:
    model = nn.Linear(4, 1)
    loss = model(static.data("x", [None, 4])).mean()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    static.minimize(optimizer, loss)
    twin = nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    theirs = torch.optim.Adam(twin.parameters(), lr=0.1)
    exe = static.Executor()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    halves = torch.optim.lr_scheduler.StepLR(theirs, 1, 0.5)
    for _ in range(3):
        exe.run(feed=BATCH, fetch_list=[loss])
        scheduler.step()
        twin(torch.ones(3, 4)).mean().backward()
        theirs.step()
        theirs.zero_grad()
        halves.step()
    assert torch.equal(model.weight, twin.weight)


def test_values_by_name_in_the_scope() -> None:
    perceptron()
    started()
    static.Executor().run(feed=BATCH, fetch_list=["x"])
    value = static.global_scope().find_var("fc_1.bias").get_tensor()
    value.set(np.array([5.0], np.float32))
    assert np.array(value).tolist() == [5.0]
    assert static.default_main_program().state.trained()["fc_1.bias"].tolist() == [5.0]
    with pytest.raises(ProgramError, match=r"'fc_1\.bia'.*did you mean"):
        static.global_scope().find_var("fc_1.bia")
    with pytest.raises(ProgramError, match=r"shape \[2\]"):
        value.set([1.0, 2.0])


def test_unique_name_shares_layers_with_a_second_program() -> None:
    main, test, startup = static.Program(), static.Program(), static.Program()
    outs = []
    for program in (main, test):
        with static.program_guard(program, startup), static.unique_name.guard():
            outs.append(perceptron()[1])
    exe = static.Executor()
    exe.run(startup)
    assert all(a is b for a, b in zip(main.parameters(), test.parameters(), strict=True))
    other = static.Program()
    with static.program_guard(other, startup):
        perceptron()
    assert other.parameters()[0] is not main.parameters()[0]
    with (
        static.program_guard(static.Program(), startup),
        pytest.raises(ProgramError, match="is another one"),
    ):
        static.nn.fc(static.data("x", [None, 4]), 99, name="fc_0")


class Counter(nn.Module):
    """Counts its calls."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x * 2


def test_buffers_are_written_whatever_is_fetched_save_in_tests() -> None:
    counter = Counter()
    out = counter(static.data("x", [None, 4]))
    main, exe = static.default_main_program(), static.Executor()
    test = main.clone(for_test=True)
    for _ in range(2):
        exe.run(main, BATCH, [out])
    exe.run(test, BATCH, [out])
    assert counter.count == 2


def scheduled(optimizer: Any = torch.optim.Adam) -> tuple[Tensor, Any]:
    loss = static.nn.fc(static.data("x", [None, 4]), 1).pow(2).mean()
    schedule = static.lr.exponential_decay(0.1, 1, 0.5)
    static.Optimizer(optimizer, lr=schedule).minimize(loss)
    return loss, schedule


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad])
def test_start_up_again_begins_training_anew(optimizer: Any) -> None:
    loss, schedule = scheduled(optimizer)
    static.default_startup_program().random_seed = 1
    exe, found = static.Executor(), []
    for _ in range(3):
        started(exe)
        found.append([exe.run(feed=BATCH, fetch_list=[loss, schedule]) for _ in range(3)])
    assert found[0] == found[1] == found[2]
    assert [float(rate) for _, rate in found[0]] == [0.1, 0.05, 0.025]


def test_start_up_of_other_layers_leaves_training_alone() -> None:
    model = nn.Linear(4, 1)
    loss = model(static.data("x", [None, 4])).pow(2).mean()
    schedule = static.lr.exponential_decay(0.1, 1, 0.5)
    static.Optimizer(torch.optim.SGD, lr=schedule).minimize(loss)
    exe, main = static.Executor(), static.default_main_program()
    rates = [float(exe.run(main, BATCH, [schedule])[0])]
    with static.program_guard(static.Program()):
        static.nn.fc(static.data("x", [None, 4]), 1)
    started(exe)  # the module of the user keeps its values at the first time
    rates.append(float(exe.run(main, BATCH, [schedule])[0]))
    assert rates == [0.1, 0.05]


def test_values_are_found_after_start_up() -> None:
    static.nn.fc(static.data("x", [None, 4]), 1)
    started()
    weight = static.global_scope().find_var("fc_0.weight")
    weight.set(np.full((1, 4), 2.0))
    assert static.default_main_program().parameters()[0].tolist() == [[2, 2, 2, 2]]


def test_a_program_runs_without_fetches() -> None:
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1], "int64")
    counts = static.auc(static.nn.fc(x, 2, activation="softmax"), y)[2]
    exe, main = started(), static.default_main_program()
    feed = {**BATCH, "y": np.zeros((3, 1), np.int64)}
    for _ in range(2):
        assert exe.run(main, feed) == []
    assert exe.run(main, feed, [counts[3]])[0].sum() == 9
    test, weights = main.clone(for_test=True), [p.tolist() for p in main.parameters()]
    assert exe.run(test, feed) == []
    assert weights == [p.tolist() for p in main.parameters()]
    for program in (main, test, static.default_startup_program()):
        with pytest.raises(ProgramError, match="'nonsense', which is no input of the program"):
            exe.run(program, {"nonsense": 3})


def test_a_variable_of_another_program_is_refused() -> None:
    first, second = static.Program(), static.Program()
    with static.program_guard(first):
        theirs: Any = static.data("x", [None, 4]).mean()
        weight = static.nn.fc(static.data("z", [None, 4]), 1, name="shared")
    copy = first.clone()
    with static.program_guard(second):
        x = static.data("x", [None, 4])
        ours: Any = (x * 100).mean()
        static.nn.fc(x, 1, name="shared")
    exe = started()
    assert theirs.name == ours.name
    with pytest.raises(ProgramError, match="'mean' belongs to another program"):
        exe.run(second, BATCH, [theirs])
    assert exe.run(second, BATCH, [theirs.name])[0] == 100
    assert exe.run(copy, BATCH, [theirs])[0] == 1
    parameters = exe.run(second, BATCH, list(first.all_parameters()))
    assert [value.shape for value in parameters] == [(1, 4), (1,)]
    with static.program_guard(first):
        added: Any = weight * 2
    with static.program_guard(copy):
        other: Any = copy.var(weight.name) * 3
    assert added.name == other.name
    with pytest.raises(ProgramError, match="belongs to another program"):
        exe.run(copy, {"z": BATCH["x"]}, [added])


def test_tensors_that_are_fetched_stay_as_they_were() -> None:
    loss = static.nn.fc(static.data("x", [None, 4]), 2).mean()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe = started()
    (weight,) = exe.run(feed=BATCH, fetch_list=["fc_0.weight"], return_numpy=False)
    kept = weight.clone()
    exe.run(feed=BATCH, fetch_list=[])
    assert torch.equal(weight, kept)


def test_a_layer_that_is_added_to_a_clone_is_none_of_the_original() -> None:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        hidden = static.nn.fc(static.data("x", [None, 4]), 3)
    second = main.clone()
    with static.program_guard(second, static.Program()):
        out = static.nn.fc(second.var(hidden.name), 2, name="head")
    exe = static.Executor()
    exe.run(startup)
    assert exe.run(main, BATCH, [hidden])[0].shape == (3, 3)
    with pytest.raises(ProgramError, match="parameters of head have no values"):
        exe.run(second, BATCH, [out])


def test_what_computed_a_feed_is_not_trained() -> None:
    encoder = nn.Linear(4, 4)
    features = encoder(torch.ones(2, 4))
    loss = static.nn.fc(static.data("x", [None, 4]), 1).mean()
    static.Optimizer(torch.optim.SGD, lr=0.1).minimize(loss)
    exe = started()
    for _ in range(2):
        exe.run(feed={"x": features}, fetch_list=[loss])
    assert encoder.weight.grad is None


@pytest.mark.parametrize("name", ["class", "lambda", "self", "torch", "None", "inf", "a-b"])
def test_names_that_are_no_arguments(name: str) -> None:
    with pytest.raises(ProgramError, match=f"of an argument in Python code, and '{name}' cannot"):
        static.data(name, [None, 4])
