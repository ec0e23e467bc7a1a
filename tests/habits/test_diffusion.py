"""Models that learn to take noise away, of diffusers; and CLIP, which leads them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world

FLAGS: dict[str, dict[str, Any]] = {
    "sharding": {"sharding": True, "sharding_configs": {"stage": 3}},
    "recompute": {
        "recompute": True,
        "recompute_configs": {"checkpoints": ["*transformer_blocks.*"]},
    },
    "tensor_parallel": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "plan": "transformer"},
    },
}


def unet() -> Any:
    import diffusers

    from tests.libraries import transformers  # noqa: F401  # first: see there

    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=4,
    )


def train(model: nn.Module, share: slice, optimizer: Any) -> None:
    torch.manual_seed(1)
    for _ in range(3):
        noisy, noise = torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8)
        times, words = torch.randint(0, 1000, (4,)), torch.randn(4, 5, 8)
        found = model(noisy[share], times[share], encoder_hidden_states=words[share]).sample
        F.mse_loss(found, noise[share]).backward()
        optimizer.step()
        optimizer.zero_grad()


def rule(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)


def begun(flags: dict[str, Any]) -> None:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)


def denoisers() -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, flags in FLAGS.items():
        begun(flags)
        model = fleet.distributed_model(unet())
        share = slice(None) if "tensor_parallel" in flags else slice(fleet.worker_index(), None, 2)
        train(model, share, fleet.distributed_optimizer(rule(model)))
        found[name] = fleet.full_state_dict(model)
    return found


def test_a_model_of_diffusers_learns_what_a_plain_run_teaches_it() -> None:
    model = unet()
    train(model, slice(None), rule(model))
    wanted = dict(model.state_dict())
    for found in world(2, timeout=240).run(denoisers)[0].values():
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def clip() -> Any:
    from tests.libraries import transformers

    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    words = {**size, "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 8}
    images = {**size, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=words, vision_config=images, projection_dim=8)
    return transformers.CLIPModel(config)


def temperature() -> float:
    """CLIP has a parameter without dimensions; returns it, trained after it got one."""
    begun(FLAGS["sharding"])
    with pytest.raises(fleet.PlanError, match=r"'logit_scale' has none.*reshape\(1\)"):
        fleet.distributed_model(clip())
    begun(FLAGS["sharding"])
    plain = clip()
    plain.logit_scale = nn.Parameter(plain.logit_scale.detach().reshape(1))
    model = fleet.distributed_model(plain)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(1)
    found = model(torch.randint(0, 16, (4, 8)), torch.randn(4, 3, 8, 8))
    optimizer.minimize(F.cross_entropy(found.logits_per_text, torch.arange(4)))
    return float(fleet.full_state_dict(model).get("logit_scale", torch.zeros(1)))


def test_a_parameter_without_dimensions_is_named() -> None:
    model = clip()
    torch.manual_seed(1)
    found = model(torch.randint(0, 16, (4, 8)), torch.randn(4, 3, 8, 8))
    F.cross_entropy(found.logits_per_text, torch.arange(4)).backward()
    start, gradient = float(model.logit_scale.detach()), float(model.logit_scale.grad)
    assert gradient
    assert world(2).run(temperature)[0] == pytest.approx(start - 0.1 * gradient, abs=1e-5)
