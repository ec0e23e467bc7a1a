"""The models are what their names say, and their names are what strategies want."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import applications, roles
from fleetx.applications import image_model
from fleetx.testing import world

SMALL: dict[str, Callable[[], Any]] = {
    "ResNet18": lambda: applications.Resnet18(5, width=4),
    "ResNet50": lambda: applications.Resnet50(5, width=4),
    "VGG16": lambda: applications.VGG16(5, width=4, hidden=8),
    "BertBase": lambda: applications.BertBase(
        vocab_size=40, layers=2, width=16, heads=2, max_seq_len=12, dropout=0.0
    ),
    "Transformer": lambda: applications.Transformer(40, layers=2, width=16, heads=2, dropout=0.0),
}


def batch(name: str, count: int = 4, seed: int = 0) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if name == "BertBase":
        words = torch.randint(1, 40, (count, 10), generator=generator)
        return words, words
    if name == "Transformer":
        words = torch.randint(1, 40, (count, 9), generator=generator)
        return (words[:, 1:], words[:, :-1]), words[:, 1:]
    return torch.randn(count, 3, 32, 32, generator=generator), torch.arange(count) % 5


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("ResNet18", 11.689512),
        ("ResNet34", 21.797672),
        ("ResNet50", 25.557032),
        ("ResNet101", 44.549160),
        ("ResNet152", 60.192808),
        ("VGG16", 138.357544),
    ],
)
def test_the_sizes_are_the_published_ones(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = applications.build(name)
    assert sum(p.numel() for p in model.parameters()) == round(millions * 1e6)


def test_bert_and_transformer_have_their_sizes() -> None:
    with torch.device("meta"):
        bert, translator = applications.BertBase(), applications.Transformer()
    layers = sum(p.numel() for p in bert.layers.parameters())
    assert layers == 12 * 7_087_872, "the layers of the published BERT base"
    assert sum(p.numel() for p in translator.encoder[0].parameters()) == 3_152_384


def test_names_are_found_in_any_case() -> None:
    assert isinstance(applications.build("resnet18", width=4), applications.Resnet18)
    with pytest.raises(ValueError, match=r"model='AlexNet' is not known; use one of ResNet18"):
        applications.build("AlexNet")
    with pytest.raises(ValueError, match="use 'en' or 'ch'"):
        applications.BertBase("fr")


def test_names_are_those_of_published_weights() -> None:
    names = set(applications.Resnet50(5, width=4).state_dict())
    assert {"conv1.weight", "bn1.running_mean", "fc.bias"} <= names
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= names


def test_vgg_loads_published_weights() -> None:
    """Theirs are numbered in one row, with gaps where a layer has none."""
    torch.manual_seed(0)
    model = SMALL["VGG16"]().eval()
    ours = model.state_dict()
    rows = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    own = [name for name in ours if name.startswith("features.")]
    theirs = [f"features.{row}.{kind}" for row in rows for kind in ("weight", "bias")]
    published = dict(zip(theirs, (ours[name] for name in own), strict=True))
    published |= {name: value for name, value in ours.items() if name not in own}
    other = SMALL["VGG16"]().eval()
    other.load_state_dict(published)
    images, _ = batch("VGG16")
    torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)
    other.load_state_dict(ours)  # its own names as well
    assert set(published) == {*theirs, *(set(ours) - set(own))}, "what was given is left alone"


def test_recompute_of_vgg_holds_one_stage_at_a_time() -> None:
    """A single checkpoint over all convolutions would bring everything back at once."""
    model = SMALL["VGG16"]()
    images, _ = batch("VGG16")
    sizes, x = [], images
    for name in model.checkpoints:
        inner = 0
        for layer in model.get_submodule(name):
            x = layer(x)
            inner += x.numel()
        sizes.append(inner)
    assert max(sizes) < 0.6 * sum(sizes)


@pytest.mark.parametrize("name", SMALL)
def test_checkpoints_are_submodules_and_hold_most_of_the_work(name: str) -> None:
    model = SMALL[name]()
    parts = [model.get_submodule(part) for part in model.checkpoints]
    assert all(type(part).forward is not nn.Module.forward for part in parts)
    assert len({id(part) for part in parts}) == len(parts)


def test_words_behind_the_end_are_not_seen() -> None:
    torch.manual_seed(0)
    bert = SMALL["BertBase"]().eval()
    short = torch.tensor([[5, 6, 7]])
    longer = torch.tensor([[5, 6, 7, 0, 0]])
    torch.testing.assert_close(bert(short), bert(longer)[:, :3])
    translator = SMALL["Transformer"]().eval()
    first = translator(short, torch.tensor([[3, 4, 5]]))
    second = translator(longer, torch.tensor([[3, 4, 9]]))
    torch.testing.assert_close(first[:, :2], second[:, :2])
    assert not torch.allclose(first[:, 2], second[:, 2])


def losses(name: str, options: dict[str, Any]) -> tuple[list[float], str]:
    torch.manual_seed(0)
    net = SMALL[name]()
    strategy = fleet.DistributedStrategy()
    for key, value in options.items():
        setattr(strategy, key, value)
    if strategy.recompute:
        strategy.recompute_configs = {"checkpoints": net.checkpoints}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net, criterion=net.criterion, sample=batch(name)[0])
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    found = []
    for step in range(2):
        whole = batch(name, seed=step)
        share = torch.tensor_split(torch.arange(4), fleet.data_num())[fleet.data_index()]
        inputs, targets = whole
        mine = tuple(part[share] for part in inputs) if name == "Transformer" else inputs[share]
        found.append(float(model.train_batch((mine, targets[share]))))
    assert optimizer.param_groups
    return found, strategy.explain(net, workers=fleet.worker_num())


LAYOUTS: dict[str, dict[str, Any]] = {
    "recompute": {"recompute": True},
    "sharding": {"sharding": True, "recompute": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SMALL)
def test_strategies_find_the_names(name: str, layout: str) -> None:
    plain = world(2).run(losses, name, {})
    found = world(2).run(losses, name, LAYOUTS[layout])
    for (ours, said), (theirs, _) in zip(found, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert "the model is laid out over workers already" in said


STAGES = {
    "ResNet18": "layer3",
    "VGG16": "features.2",
    "BertBase": "layers.1",
    "Transformer": "decoder.0",
}


@pytest.mark.parametrize("name", STAGES)
def test_a_pipeline_is_cut_at_their_names(name: str) -> None:
    cut = {"split": [STAGES[name]], "accumulate_steps": 2}
    found = world(2).run(losses, name, {"pipeline": True, "pipeline_configs": cut})
    assert found[0][0] == found[1][0], "both stages are told the loss"
    ((alone, _),) = world(1).run(losses, name, {})
    # Batch norm sees micro-batches in a pipeline; the others see no difference.
    assert found[0][0] == pytest.approx(alone, rel=0.5 if name == "ResNet18" else 1e-3)


def replayed() -> tuple[int, int]:
    """How often blocks run forward in one update, without and with recompute."""
    counts = []
    for recompute in (False, True):
        net = SMALL["ResNet18"]()
        calls: list[str] = []
        net.layer2[0].conv1.register_forward_hook(lambda *_: calls.append("ran"))  # noqa: B023
        strategy = fleet.DistributedStrategy()
        if recompute:
            strategy.recompute = True
            strategy.recompute_configs = {"checkpoints": net.checkpoints}
        roles.stop()
        fleet.init(is_collective=True, strategy=strategy)
        model = fleet.distributed_model(net, criterion=net.criterion)
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        model.train_batch(batch("ResNet18"))
        counts.append(len(calls))
    return counts[0], counts[1]


def test_recompute_is_in_force() -> None:
    assert world(2).run(replayed) == [(1, 2), (1, 2)]


def test_train_configs_are_those_of_fleetx() -> None:
    found = fleet.parse_train_configs([])
    assert vars(found) == {
        "lr": 1e-4,
        "momentum": 0.9,
        "beta1": 0.9,
        "beta2": 0.997,
        "batch_size": 32,
        "epsilon": 1e-9,
        "download_config": None,
    }
    assert fleet.parse_train_configs(["--lr", "0.5", "--mine", "x"]).lr == 0.5
    theirs = ["--beta", "0.5", "--m", "3", "--l=2", "--batch", "7"]
    assert fleet.parse_train_configs(theirs) == fleet.parse_train_configs([])


def as_on_cards(options: dict[str, Any]) -> tuple[list[float], bool]:
    """The losses with weights as they lie on a card; the processor computes the same with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_model, "on_a_card", lambda model: True)
        found, _ = losses("ResNet18", options)
        model = SMALL["ResNet18"]().to("cpu")
    weight = model.layer1[0].conv1.weight
    return found, weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("options", [{}, {"recompute": True, "lars": True}, {"sharding": True}])
def test_weights_lie_channels_last_on_a_card(options: dict[str, Any]) -> None:
    plain = world(2).run(losses, "ResNet18", options)
    for (ours, moved), (theirs, _) in zip(world(2).run(as_on_cards, options), plain, strict=True):
        assert moved
        assert ours == pytest.approx(theirs, rel=1e-4)
