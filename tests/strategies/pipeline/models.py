"""Models of the tests: ordinary forwards, as users write them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from fleetx.graph.part import Part
from fleetx.strategies.pipeline import parts, trace


class Block(nn.Module):
    """Attention with a mask that is an argument of the model, and a dropout by the mode."""

    def __init__(self, width: int, heads: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.drop = heads, drop

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        drop = self.drop if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """A loop over blocks, positions on the root, a skip over everything, a head by hand."""

    def __init__(
        self, depth: int = 4, width: int = 8, drop: float = 0.0, tied: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.positions = nn.Parameter(torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(Block(width, drop=drop) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.tensor(0.5))
        self.head = nn.Linear(width, 11, bias=False) if tied else None
        if self.head is not None:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, mask: Tensor, temperature: float = 1.0) -> dict[str, Any]:
        batch, length = ids.size()
        assert length <= self.positions.size(1), "too long"
        order = torch.arange(length, device=ids.device)
        x = first = self.embed(ids) + self.positions[:, order]
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x + first) * self.scale / temperature
        logits = self.head(x) if self.head is not None else F.linear(x, self.embed.weight)
        return {"logits": logits.view(batch * length, -1), "batch": batch}


class Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        same = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += same
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Residual(4, 4), Residual(4, 4))
        self.layer2 = nn.Sequential(Residual(4, 6), Residual(6, 6))
        self.layer3 = nn.Sequential(Residual(6, 8))
        self.layer4 = nn.Sequential(Residual(8, 8))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def nothing_whole(name: str, module: nn.Module) -> bool:
    return False


def all_whole(name: str, module: nn.Module) -> bool:
    return True


def followed(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, whole: trace.Whole = all_whole
) -> fx.Graph:
    """The forward, for inputs like these, or by the structure of a chain alone."""
    return trace.way_of(model, inputs)(whole).graph


def run_all(cut: Sequence[Part], model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """The parts one after the other; what one sends, the next receives."""
    values: Any = ()
    for before, after in pairwise(cut):
        assert before.sends == after.receives
    for part in cut:
        names = [str(node.target) for node in part.graph.nodes if node.op == "placeholder"]
        assert names == [*part.inputs, *part.receives]
        values = parts.run(part, model, inputs, values)
    return values


def results(model: nn.Module, output: Any) -> list[Any]:
    """All numbers of one step: outputs, then gradients, then buffers."""
    leaves = tree_leaves(output)
    loss = torch.stack([leaf.pow(2).sum() for leaf in leaves if isinstance(leaf, Tensor)]).sum()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [*leaves, *gradients, *(buffer.clone() for buffer in model.buffers())]


def check(
    model: nn.Module,
    inputs: Mapping[str, Any],
    points: Sequence[str],
    whole: trace.Whole = all_whole,
) -> list[Part]:
    """Both ways give the same bits."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = [name for name, _ in model.named_modules()]
    forward = trace.way_of(model, inputs)(whole)
    cut = parts.cut(forward.graph, points, forward.check)
    assert len(cut) == len(points) + 1
    assert [name for name, _ in model.named_modules()] == names
    torch.manual_seed(3)
    want = results(model, model(**inputs))
    model.load_state_dict(before)
    torch.manual_seed(3)
    got = results(model, run_all(cut, model, inputs))
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    return cut
