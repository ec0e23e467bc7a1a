"""Models that programs are recorded from, small enough for a test."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """The block of ResNet50."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + self.short(x))


class ResNet(nn.Module):
    """ResNet50 when ``blocks`` is (3, 4, 6, 3) and ``width`` is 64."""

    def __init__(
        self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, channels = [], width
        for depth, count in enumerate(blocks):
            wide = width * 2**depth
            for block in range(count):
                stride = 2 if depth and not block else 1
                layers.append(Bottleneck(channels, wide, stride))
                channels = 4 * wide
        self.layers = nn.ModuleList(layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """Encoder layers of torch, and positions made in the forward."""

    def __init__(self, words: int = 50, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Embedding(32, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.2, batch_first=True)
            for _ in range(2)
        )
        self.out = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.word(ids) + self.place(places)
        for layer in self.layers:
            x = layer(x)
        return self.out(x.mean(1))


class Lstm(nn.Module):
    """A two-layer LSTM over word vectors."""

    def __init__(self, words: int = 50, width: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        states, (last, _) = self.lstm(self.word(ids))
        return self.out(last[-1] + states[:, -1])


class WideDeep(nn.Module):
    """A linear model of crossed ids beside a perceptron of embeddings."""

    def __init__(self, ids: int = 100, fields: int = 5, width: int = 8) -> None:
        super().__init__()
        self.wide = nn.Embedding(ids, 1)
        self.deep = nn.Embedding(ids, width)
        self.mlp = nn.Sequential(
            nn.Linear(fields * width, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        deep = self.mlp(self.deep(ids).flatten(1))
        return (self.wide(ids).sum((1, 2)) + deep.squeeze(1)).sigmoid()
