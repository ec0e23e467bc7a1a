"""What servers tell of themselves: to workers, to whoever looks, and to Prometheus."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fleetx as fleet
from fleetx.ps.observers.command import in_words
from fleetx.ps.server import metrics_page
from fleetx.ps.server.service_rates import ServiceRates
from fleetx.ps.tables.sparse_spec import SparseSpec
from tests.ps.team import push, rows, table, team


def samples(text: str) -> dict[str, float]:
    """Name, with the table behind it -> value."""
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples]
    return {".".join([each.name, *each.labels.values()]): each.value for each in found}


def test_a_server_reports_its_process_and_each_table(tmp_path: Path) -> None:
    with team(workers=2, folder=tmp_path) as here:
        client = here.client()
        handle = table(client, SparseSpec(name="t", dim=4))
        push(client, handle, [1, 2, 3], np.ones((3, 4)))
        rows(client, handle, [1, 2])
        (handler,) = here.handlers
        report = client.call({"method": "describe"})
        told = report["tables"]["t"]
        assert (told["rows"], told["pushed"], told["pulled"], told["updates"]) == (3, 3, 2, 1)
        assert told["log_bytes"] > 3 * (8 + 16), "ids and gradients are in the log"
        assert report["memory"] > 1 << 20
        assert report["connections"] >= 1
        assert report["dead"] == []
        with metrics_page.served("127.0.0.1", 0, handler.report) as port:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.headers["Content-Type"] == metrics_page.CONTENT_TYPE
                figures = samples(answer.read().decode())
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/")
        assert figures["fleetx_ps_table_rows.t"] == 3
        assert figures["fleetx_ps_table_pushed_total.t"] == 3
        assert figures["fleetx_ps_table_log_bytes.t"] == told["log_bytes"]
        assert figures["fleetx_ps_dead_workers"] == 0
        words = in_words("here", report).splitlines()
        assert words[2].split()[:3] == ["t", "3", "rows"]


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = ServiceRates(window=10)
    assert rates.per_second("t") == {}
    for second in range(100):
        pushed = 50 * second if second < 50 else 2500
        rates.take({"t": {"pushed": pushed}}, now=float(second))
        if second == 40:
            assert rates.per_second("t") == {"pushed": 50}
    assert rates.per_second("t") == {"pushed": 0}
    rates.take({"t": {"pushed": 2500}, "new": {"pushed": 100}}, now=100.0)
    assert rates.per_second("new") == {"pushed": 10}


@pytest.mark.parametrize("port", [0, -1, 70000, True, "9400"])
def test_a_port_that_is_none_is_refused(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetx.api import servers

    monkeypatch.setattr(servers, "_server", lambda call: None)
    with pytest.raises(ValueError, match="pass a port from 1 to 65535"):
        fleet.init_server(metrics_port=port)


def test_a_port_that_is_taken_is_named() -> None:
    with (
        metrics_page.served("127.0.0.1", 0, dict) as port,
        pytest.raises(ValueError, match=f"metrics_port={port}.*choose a port"),
        metrics_page.served("127.0.0.1", port, dict),
    ):
        pass
