"""Cluster files: what was written is read, and what is wrong is one sentence."""

from pathlib import Path

import pytest

from fleetx.auto.cluster import Cluster, Device, Link, load
from fleetx.plan.error import PlanError

H200 = Cluster(
    nodes=128,
    devices_per_node=8,
    device=Device(
        kind="cuda",
        memory_gigabytes=139,
        teraflops={"product 32": 50, "product 16": 650},
        memory_gigabytes_per_second=4300,
        microseconds_per_kernel=6,
        host_gigabytes_per_second=50,
    ),
    inside=Link(gigabytes_per_second=350, microseconds=10),
    outside=Link(gigabytes_per_second=45, microseconds=20),
    name="128 nodes of 8 H200",
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    H200.save(tmp_path / "folder" / "cluster.yaml")
    assert load(tmp_path / "folder" / "cluster.yaml") == H200


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes: 128", "", "nodes is missing"),
        ("nodes: 128", "nodes: 0", "nodes = 0 is absurd"),
        ("nodes: 128", "nodes: many", "nodes = 'many' is no whole number"),
        ("nodes: 128", "nodes: 1.5", "nodes = 1.5 is no whole number"),
        ("nodes: 128", "nods: 128", "there is no 'nods'; did you mean 'nodes'"),
        ("memory_gigabytes: 139", "memory_gigabytes: -1", "device.memory_gigabytes = -1 is absurd"),
        ("memory_gigabytes: 139", "memory_gigabytes: .nan", "device.memory_gigabytes = nan is no"),
        (
            "product 32: 50",
            "product 31: 50",
            "device.teraflops must say at least what 'product 32'",
        ),
        ("nodes: 128", "nodes: [", "is not YAML"),
        ("kind: cuda", "kind: 3", "device.kind = 3 is no str"),
    ],
)
def test_a_wrong_file_is_one_sentence(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    H200.save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PlanError, match="the cluster file") as found:
        load(path)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load(tmp_path / "nothing.yaml")


def test_neighbours_inside_of_a_machine_have_its_link() -> None:
    assert H200.link(8, 1) is H200.inside
    assert H200.link(4, 2) is H200.inside
    assert H200.link(8, 2) is H200.outside
    assert H200.link(2, 8) is H200.outside


def test_an_unknown_kind_is_as_fast_as_a_product() -> None:
    assert H200.device.rate("attention", 16) == 650e12
    assert H200.device.rate("convolution", 64) == 50e12
