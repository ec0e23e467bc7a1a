"""Names around jobs, each called with what real scripts pass; a made ``hadoop`` keeps files."""

from pathlib import Path

import numpy as np
import pytest

from fleetx.compat import notes

HADOOP = """#!/bin/bash
shift  # fs
while [[ $1 == -D* ]]; do shift; done
case $1 in
  -test) test $2 "$ROOT$3" ;;
  -mkdir) mkdir -p "$ROOT${@: -1}" ;;
  -put) cp -r "${@: -2:1}" "$ROOT${@: -1}" ;;
  -get) cp -r "$ROOT${@: -2:1}" "${@: -1}" ;;
  -rm|-rmr) rm -r "$ROOT${@: -1}" ;;
  -ls) for f in "$ROOT$2"/*; do
         kind=-; test -d "$f" && kind=d
         echo "${kind}rw-r--r-- 1 me us 3 2020-01-01 00:00 $2/$(basename "$f")"
       done ;;
  *) echo "unknown $1" >&2; exit 1 ;;
esac
"""


def test_files_behind_hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paddle.distributed.fleet.utils.fs import HDFSClient
    from paddle.fluid.contrib.utils import HDFSClient as OfOld

    home, root = tmp_path / "home", tmp_path / "root"
    (home / "bin").mkdir(parents=True)
    root.mkdir()
    (home / "bin" / "hadoop").write_text(HADOOP)
    (home / "bin" / "hadoop").chmod(0o755)
    monkeypatch.setenv("ROOT", str(root))
    settings = {"fs.default.name": "hdfs://here", "hadoop.job.ugi": "me,word"}
    client = HDFSClient(str(home), settings)
    client.mkdirs("/model")
    (tmp_path / "weights").write_text("abc")
    client.upload(str(tmp_path / "weights"), "/model/weights")
    assert client.is_dir("/model")
    assert client.is_file("/model/weights")
    assert client.ls_dir("/model") == ([], ["weights"])
    client.download("/model/weights", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "abc"
    assert OfOld(str(home), settings).ls("/model") == ["/model/weights"]
    client.delete("/model")
    assert not client.is_exist("/model")


def test_numbers_of_all_workers_of_one() -> None:
    from paddle.distributed.fleet import metrics

    assert metrics.mae(np.array([3.0]), np.array([4.0])) == 0.75
    assert metrics.mse(np.array([2.0]), np.array([4.0])) == 0.5
    assert metrics.auc(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == 1.0


def test_roles_that_scripts_write_down() -> None:
    from paddle.fluid.incubate.fleet.base import role_maker

    ends = ["127.0.0.1:6001", "127.0.0.1:6002"]
    server = role_maker.UserDefinedRoleMaker(
        current_id=0, role=role_maker.Role.SERVER, worker_num=2, server_endpoints=ends
    )
    assert server.is_server()
    assert server.server_num() == 2
    worker = role_maker.UserDefinedRoleMaker(
        current_id=1, role=role_maker.Role.WORKER, worker_num=2, server_endpoints=ends
    )
    assert (worker.is_worker(), worker.worker_index()) == (True, 1)
    together = role_maker.UserDefinedCollectiveRoleMaker(current_id=1, worker_endpoints=ends)
    assert together.worker_num() == 2


def test_data_sets_of_both_generations_are_one(tmp_path: Path) -> None:
    import paddle
    from paddle import fluid

    x = fluid.data("x", [None, 2], "float32")
    (tmp_path / "part").write_text("2 1.0 2.0\n2 3.0 4.0\n")
    for made in (paddle.distributed.InMemoryDataset(), paddle.distributed.QueueDataset()):
        assert isinstance(made, (fluid.InMemoryDataset, fluid.QueueDataset))
        made.init(batch_size=2, thread_num=1, use_var=[x], pipe_command="cat")
        made.set_filelist([str(tmp_path / "part")])
        if isinstance(made, fluid.InMemoryDataset):
            made.load_into_memory()
            assert made.get_memory_data_size() == 2


def test_helpers_of_fleetx_1_are_made() -> None:
    import fleetx

    assert callable(fleetx.utils.Downloader().download_from_bos)
    assert callable(fleetx.MultiGPUTrainer().fit)


def test_what_has_no_effect_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    from paddle import fluid

    import fleetx
    from fleetx.compat.distribution import without_idle

    notes._said.clear()
    fluid.layers.fc(fluid.data("x", [None, 2], "float32"), 2)
    strategy = fleetx.DistributedStrategy()
    strategy.lars = strategy.dgc = True
    strategy.lars_configs = {"exclude_from_weight_decay": ["nobody", ".b_0"]}
    kept = without_idle(strategy)
    assert [*kept.lars_configs["exclude_from_weight_decay"]] == [".b_0"]
    assert (kept.dgc, strategy.dgc) == (False, True)
    told = [record.message for record in caplog.records]
    assert any("nobody" in line for line in told)
    assert any("strategy.dgc" in line for line in told)


def test_a_script_for_servers_runs_as_one_process(caplog: pytest.LogCaptureFixture) -> None:
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    notes._said.clear()
    fleet.init()
    fleet.init_worker()
    fleet.stop_worker()
    assert "fleet.init_worker(): this is one process without servers" in caplog.text


def test_names_of_bfloat16_that_scripts_borrow() -> None:
    from paddle.fluid.tests.unittests import op_test

    bits = op_test.convert_float_to_uint16([1.0, -2.5])
    assert bits.dtype == np.uint16
    assert op_test.convert_uint16_to_float(bits).tolist() == [1.0, -2.5]
    same = np.array([0.5], "float32")
    assert op_test.convert_uint16_to_float(same).tolist() == [0.5]


def test_a_role_maker_is_told_where_workers_of_paddle_met() -> None:
    from paddle.distributed.fleet.base import role_maker

    made = role_maker.UserDefinedRoleMaker(
        is_collective=False,
        init_gloo=False,
        path="/nowhere",
        current_id=0,
        role=role_maker.Role.SERVER,
        worker_endpoints=["127.0.0.1:1"],
        server_endpoints=["127.0.0.1:2"],
    )
    assert made.is_server()


def test_a_transpiler_names_what_it_was_not_told() -> None:
    from paddle import fluid

    made = fluid.DistributeTranspiler()
    with pytest.raises(RuntimeError, match=r"get_pserver_program\(\) gives what a server runs"):
        made.get_pserver_program("127.0.0.1:1")
    made.transpile(0, pservers="127.0.0.1:1,127.0.0.1:2", trainers=2)
    with pytest.raises(ValueError, match="is none of the servers"):
        made.get_pserver_program("127.0.0.1:3")
    made.transpile(0, trainers=2)
    with pytest.raises(ValueError, match="was given no pservers"):
        made.get_trainer_program()
