"""Values belong to the scope in which a program runs, and tests of one worker are its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.record.error import ProgramError
from fleetx.testing import world
from tests.compat.workers import served

FEED = {
    "x": np.array([[1.0, 2.0], [3.0, 4.0]], "float32"),
    "y": np.array([[1.0], [2.0]], "float32"),
}


def net(trained: bool, rate: float = 0.01) -> tuple[Any, Any, Any, Any]:
    """A program of a line with a start-up program, its guess and its loss."""
    from paddle import fluid

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2], "float32")
        y = fluid.data("y", [None, 1], "float32")
        guess = fluid.layers.fc(x, 1, bias_attr=False)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
        if trained:
            optimizer = fluid.optimizer.Momentum(rate, 0.9)
            import fleetx

            if fleetx.roles.started():
                from paddle.fluid.incubate.fleet.collective import fleet

                optimizer = fleet.distributed_optimizer(optimizer)
            optimizer.minimize(loss)
    return main, startup, guess, loss


def weight(scope: Any = None) -> Any:
    from paddle import fluid

    return np.array((scope or fluid.global_scope()).find_var("fc_0.w_0").get_tensor())


def test_a_program_for_tests_has_values_of_its_own_in_a_fresh_scope(tmp_path: Path) -> None:
    from paddle import fluid

    main, startup, _, loss = net(trained=True)
    test, test_startup, guess, _ = net(trained=False)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main, FEED, [loss])
    trained = weight()
    fluid.io.save_persistables(exe, str(tmp_path), main)
    exe.run(main, FEED, [loss])
    later, apart = weight(), fluid.Scope()
    with fluid.scope_guard(apart):
        with pytest.raises(ProgramError, match="no values yet"):
            exe.run(test, FEED, [guess])
        exe.run(test_startup)
        drawn = weight()
        assert drawn.tolist() not in (trained.tolist(), later.tolist())
        assert exe.run(test, FEED, [guess])[0] == pytest.approx(FEED["x"] @ drawn)
        fluid.io.load_persistables(exe, str(tmp_path), test)
        assert exe.run(test, FEED, [guess])[0] == pytest.approx(FEED["x"] @ trained)
        assert weight().tolist() == trained.tolist()
    assert weight().tolist() == later.tolist()
    assert exe.run(test, FEED, [guess])[0] == pytest.approx(FEED["x"] @ later)
    assert exe.run(test, FEED, [guess.name], scope=apart)[0] == pytest.approx(FEED["x"] @ trained)
    compiled = fluid.CompiledProgram(test)
    assert exe.run(compiled, FEED, [guess], scope=apart)[0] == pytest.approx(FEED["x"] @ trained)


def test_a_program_is_trained_where_its_start_up_ran() -> None:
    from paddle import fluid

    main, startup, _, loss = net(trained=True)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.scope_guard(scope):
        exe.run(startup)
        losses = [exe.run(main, FEED, [loss])[0] for _ in range(5)]
        assert losses[-1] < losses[0]
        moved = weight()
    assert fluid.global_scope().find_var("fc_0.w_0") is None
    with pytest.raises(ProgramError, match="no values yet"):
        exe.run(main, FEED, [loss])
    exe.run(startup)
    assert weight(scope).tolist() == moved.tolist() != weight().tolist()


def test_two_trainings_of_one_program_do_not_touch_one_another() -> None:
    from paddle import fluid

    main, startup, _, loss = net(trained=True)
    exe, scopes = fluid.Executor(fluid.CPUPlace()), [fluid.Scope() for _ in range(2)]
    start = np.array([[0.5], [-0.5]], "float32")

    def trained(times: int, scope: Any) -> Any:
        for _ in range(times):
            exe.run(main, FEED, [loss], scope=scope)
        return weight(scope)

    for scope in scopes:
        exe.run(startup, scope=scope)
        scope.find_var("fc_0.w_0").get_tensor().set(start, fluid.CPUPlace())
    once, twice = trained(1, scopes[0]), trained(2, scopes[1])
    assert once.tolist() != twice.tolist()
    # Momentum is of the scope too: the second update is the same.
    assert trained(1, scopes[0]) == pytest.approx(twice)
    exe.run(startup, scope=scopes[0])
    scopes[0].find_var("fc_0.w_0").get_tensor().set(start, fluid.CPUPlace())
    assert trained(1, scopes[0]) == pytest.approx(once)
    assert weight(scopes[1]) == pytest.approx(twice)


def test_a_program_that_was_written_under_another_scope_reads_the_values_in_force() -> None:
    from paddle import fluid

    main, startup, _, loss = net(trained=True)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    with fluid.scope_guard(fluid.Scope()):
        test, _, guess, _ = net(trained=False)
    for _ in range(2):
        exe.run(main, FEED, [loss])
        assert exe.run(test, FEED, [guess])[0] == pytest.approx(FEED["x"] @ weight())


def test_a_saved_model_is_used_in_a_scope_of_its_own(tmp_path: Path) -> None:
    from paddle import fluid

    main, startup, guess, loss = net(trained=True)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    saved = weight()
    fluid.io.save_inference_model(str(tmp_path), ["x"], [guess], exe, main)
    exe.run(main, FEED, [loss])
    with fluid.scope_guard(fluid.core.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
        found = exe.run(program, {feeds[0]: FEED["x"]}, fetches)[0]
    assert found == pytest.approx(FEED["x"] @ saved)
    assert weight().tolist() != saved.tolist()


def _tests_of_the_first_worker(folder: str) -> list[Any]:
    """What old scripts do: the first worker tests alone, now and then."""
    from paddle import fluid
    from paddle.fluid.incubate.fleet.base import role_maker
    from paddle.fluid.incubate.fleet.collective import fleet

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    main, startup, _, loss = net(trained=True)
    test, test_startup, guess, _ = net(trained=False)
    exe = fluid.Executor(fluid.CPUPlace())
    if fleet.worker_index() == 0:
        exe.run(test_startup)
    for _ in range(2):
        exe.run(startup)
    found = [weight()]
    for step in range(4):
        exe.run(main, FEED, [loss])
        if fleet.worker_index() == 0:
            fluid.io.save_persistables(exe, folder, main)
            if step % 2:
                with fluid.scope_guard(fluid.Scope()):
                    exe.run(test_startup)
                    fluid.io.load_persistables(exe, folder, test)
                    seen = exe.run(test, FEED, [guess])[0]
            else:  # in the scope of the training, which goes on with what was loaded
                exe.run(test_startup)
                fluid.io.load_persistables(exe, folder, test)
                seen = exe.run(test, FEED, [guess])[0]
            assert seen == pytest.approx(FEED["x"] @ weight())
        found.append(weight())
    return found


def scripts_of_workers(folder: str) -> list[Any]:
    with served():
        return _tests_of_the_first_worker(folder)


def test_the_first_worker_tests_alone(tmp_path: Path) -> None:
    one, other = world(2).run(scripts_of_workers, str(tmp_path))
    assert [w.tolist() for w in one] == [w.tolist() for w in other]
    # One worker alone on the same batches learns the same.
    velocity, found = np.zeros((2, 1)), [one[0].astype("float64")]
    for _ in range(4):
        gradient = FEED["x"].T @ (FEED["x"] @ found[-1] - FEED["y"])
        velocity = 0.9 * velocity + gradient
        found.append(found[-1] - 0.01 * velocity)
    for got, wanted in zip(one, found, strict=True):
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5)
