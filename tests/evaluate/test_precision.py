"""Vectors are computed in float32 as it is, and what a process has set is left as it was."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.backends import cuda, cudnn, mkldnn
from typing_extensions import override

from fleetx.applications import Resnet18
from fleetx.evaluate.models import vectors_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def settings() -> dict[str, Any]:
    """All that torch is asked for, in the newer way and in the older one."""
    places = {"matmul": cuda.matmul, "conv": cudnn.conv, "rnn": cudnn.rnn}  # type: ignore[attr-defined]
    places["cpu"] = mkldnn.matmul  # type: ignore[attr-defined]
    newer = {name: place.fp32_precision for name, place in places.items()}
    return {**newer, "older": (cuda.matmul.allow_tf32, cudnn.allow_tf32)}


class Watching(nn.Module):
    seen: dict[str, Any]

    @override
    def forward(self, batch: Tensor) -> Tensor:
        Watching.seen = settings()
        if batch.sum() > 100:
            raise KeyboardInterrupt
        return batch


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    matmul, conv = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = conv


@pytest.mark.parametrize(("matmul", "conv"), [("highest", True), ("high", True), ("high", False)])
def test_a_model_runs_in_full_float32(matmul: str, conv: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = conv
    before = settings()
    vectors = vectors_of(f"{__name__}:Watching", None, torch.device("cpu"))
    vectors.run(torch.zeros(2, 3))
    full = dict.fromkeys(("matmul", "conv", "rnn", "cpu"), "ieee")
    assert Watching.seen == {**full, "older": (False, False)}
    assert settings() == before
    with pytest.raises(KeyboardInterrupt):
        vectors.run(torch.full((2, 3), 99.0))
    assert settings() == before


def test_settings_of_the_newer_kind_alone_are_kept() -> None:
    kept = cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    try:
        with pytest.raises(RuntimeError):
            _ = cudnn.allow_tf32
        model = vectors_of("torch.nn:Identity", None, torch.device("cpu"))
        assert model.run(torch.ones(1, 2)).tolist() == [[1, 1]]
        assert cudnn.conv.fp32_precision == "ieee"  # type: ignore[attr-defined]
        assert cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
    finally:
        cudnn.conv.fp32_precision = kept  # type: ignore[attr-defined]


@needs_gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "weights.safetensors"
    save_file(Resnet18(class_dim=10).state_dict(), weights)
    batch = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        cpu, gpu = (
            vectors_of("ResNet18", str(weights), torch.device(kind), 10).run(batch)
            for kind in ("cpu", "cuda")
        )
    # An H200 is 3e-7 away in float32, and 5e-4 in TF32.
    assert (cpu - gpu).abs().max() < 2e-5 * cpu.abs().max()
