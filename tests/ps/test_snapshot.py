"""Saving while training goes on, and loading on another number of servers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fleetx.api.table_saves import save
from fleetx.nn import CountFilterEntry, SparseEmbedding, load_inference_model
from fleetx.ps.tables import safetensors_file
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from tests.ps.team import carried, push, rows, table, team, train

SPEC = SparseSpec(name="t", dim=3, rule=Adagrad(0.1))
IDS = np.random.default_rng(0).permutation(np.arange(-700, 700) * 10**15)


def ones(ids: Any) -> Any:
    return np.ones((len(ids), 3), np.float32)


def test_a_save_of_two_servers_is_loaded_by_three_and_read_by_safetensors(tmp_path: Path) -> None:
    with team(2) as here:
        worker = here.worker()
        handle = table(worker.client, SPEC)
        push(worker.client, handle, IDS, ones(IDS))
        save(worker, tmp_path / "full", delta=False)
        push(worker.client, handle, IDS[:40], ones(IDS[:40]))
        save(worker, tmp_path / "delta", delta=True)
        push(worker.client, handle, IDS, ones(IDS))
        expected = rows(worker.client, handle, IDS)
        worker.stop()
    found: dict[int, Any] = {}
    for path in (tmp_path / "full").rglob("*.safetensors"):
        arrays = load_file(path)
        assert arrays["rows"].shape == arrays["state"].shape == (len(arrays["ids"]), 3)
        found |= dict(zip(arrays["ids"].tolist(), arrays["rows"], strict=True))
    assert sorted(found) == sorted(IDS.tolist())
    changed = [load_file(path) for path in (tmp_path / "delta").rglob("*.safetensors")]
    assert sorted(np.concatenate([each["ids"] for each in changed])) == sorted(IDS[:40])
    with team(3) as here:
        client = here.client()
        handle = table(client, SPEC)
        for part in ("full", "delta"):
            client.call_all({"method": "load", "folder": str(tmp_path / part)})
        push(client, handle, IDS, ones(IDS))
        assert (rows(client, handle, IDS) == expected).all(), "weights and state are the same"
        sizes = [
            answer["tables"]["t"]["rows"] for answer in client.call_all({"method": "describe"})
        ]
        assert sum(sizes) == len(IDS)
        assert min(sizes) > 300


def test_a_delta_remembers_what_was_dropped(tmp_path: Path) -> None:
    with team(2) as here:
        worker = here.worker()
        handle = table(worker.client, SPEC)
        push(worker.client, handle, IDS, ones(IDS))
        save(worker, tmp_path / "full", delta=False)
        worker.client.call_all({"method": "shrink", "threshold": 1})
        push(worker.client, handle, IDS[:5], ones(IDS[:5]))
        worker.client.call_all({"method": "shrink", "threshold": 1})
        save(worker, tmp_path / "delta", delta=True)
        worker.stop()
    with team(1) as here:
        client = here.client()
        table(client, SPEC)
        for part in ("full", "delta"):
            client.call_all({"method": "load", "folder": str(tmp_path / part)})
        assert client.call({"method": "describe"})["tables"]["t"]["rows"] == 5


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(5, name="words", pooling="mean")
        self.body = torch.nn.Linear(5, 40)
        self.head = torch.nn.Linear(40, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(self.words(ids))))


def test_dense_parameters_are_cut_anew_for_other_servers(tmp_path: Path) -> None:
    from fleetx.ps.worker.carrier_options import CarrierOptions
    from fleetx.ps.worker.parameter_split import ParameterSplit

    torch.manual_seed(0)
    inputs = torch.randint(0, 50, (8, 6, 3))
    targets = torch.randn(8, 6)
    options = {"optimizer": torch.optim.Adam, "lr": 0.05}

    def run(servers: int, begin: int, end: int, load: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        carrier_options = CarrierOptions(split=ParameterSplit(min_block_size=16))
        with team(servers) as here:
            model, worker = Net(), here.worker()
            carrier = carried(model, worker, carrier_options=carrier_options, **options)  # type: ignore[arg-type]
            if load:
                worker.client.call_all({"method": "load", "folder": str(tmp_path / "half")})
                carrier.refresh(worker, 0)
            for step in range(begin, end):
                train(model, carrier, inputs[step], targets[step])
            if not load:
                save(worker, tmp_path / "half", delta=False) if end == 4 else None
            model.eval()
            found = [p.detach().clone() for p in model.parameters() if p.numel()]
            found.append(model(inputs.reshape(-1, 3)).detach())
            worker.stop()
        return found

    run(2, 0, 4, load=False)
    after = run(3, 4, 8, load=True)
    straight = run(1, 0, 8, load=False)
    for one, other in zip(after, straight, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_ids_that_wait_for_a_row_go_on_waiting_after_a_load(tmp_path: Path) -> None:
    spec = SparseSpec(name="t", dim=3, entry=CountFilterEntry(3))
    met = np.array([2, 1, 3], np.uint32)
    with team(2) as here:
        worker = here.worker()
        handle = table(worker.client, spec)
        batch = IdBatch.of(np.array([10, 20, 30]), 2)
        worker.client.pull(handle, batch, met=met[np.argsort(batch.place)])
        save(worker, tmp_path, delta=False)
        worker.stop()
    with team(3) as here:
        client = here.client()
        handle = table(client, spec)
        client.call_all({"method": "load", "folder": str(tmp_path)})
        rows(client, handle, [10, 20, 30, 40], train=True)  # once more
        report = client.call_all({"method": "describe"})
        assert sum(each["tables"]["t"]["rows"] for each in report) == 2, "30 before, 10 now"
        assert (rows(client, handle, [20, 40]) == 0).all()
        assert (rows(client, handle, [10, 30]) != 0).all()


def test_a_model_that_is_loaded_to_compute_says_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no dense\.safetensors"):
        load_inference_model(tmp_path, Net())
    with team(2) as here:
        model, worker = Net(), here.worker()
        carried(model, worker)
        model(torch.arange(6).reshape(2, 3))
        save(worker, tmp_path / "tables", delta=False)
        worker.stop()
    dense = {k: v.numpy() for k, v in model.state_dict().items() if k != "words.anchor"}
    safetensors_file.write(tmp_path / "dense.safetensors", dense)
    alone = load_inference_model(tmp_path, Net())
    assert alone(torch.arange(6).reshape(2, 3)).shape == (2, 1)
    with pytest.raises(RuntimeError, match=r"cannot be trained; call model\.eval\(\)"):
        alone.train()(torch.arange(6).reshape(2, 3))
    other = Net()
    other.words = SparseEmbedding(7, name="words")
    with pytest.raises(ValueError, match=r"make it SparseEmbedding\(5, name='words'\)"):
        load_inference_model(tmp_path, other).words(torch.arange(3)[:, None])
    other.words = SparseEmbedding(5, name="wards")
    with pytest.raises(ValueError, match="holds no table 'wards'"):
        load_inference_model(tmp_path, other).words(torch.arange(3)[:, None])
    with pytest.raises(ValueError, match="build the model that was saved"):
        load_inference_model(tmp_path, torch.nn.Linear(2, 2))


def test_a_folder_that_is_no_save_is_refused(tmp_path: Path) -> None:
    with team() as here:
        client = here.client()
        table(client, SPEC)
        with pytest.raises(ValueError, match="is this a complete save"):
            client.call({"method": "load", "folder": str(tmp_path)})
        (tmp_path / "tables").mkdir()
        (tmp_path / "tables" / "manifest.json").write_text("{}")
        with pytest.raises(ValueError, match=r"no save of tables; give the one inside, .*tables"):
            client.call({"method": "load", "folder": str(tmp_path)})
