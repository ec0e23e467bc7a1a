"""Images decoded by a card: the crops of the host, and its pixels as far as decoders agree.

On a machine with a GPU (``make gpu``) the card decodes. Elsewhere PIL decodes the same bytes in its
place, by the same library as the host, and everything else is what runs on a card.
"""

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pictures
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fleetx.data.images import Images, LabelledFiles, View, card, decoders, image_loader, loaders
from fleetx.data.images.card import CardDecoder, lacking
from fleetx.data.images.cutting import cut
from fleetx.data.images.decoders import Decoder, choose_decoder
from fleetx.data.images.decoding import BrokenImageError, Part
from fleetx.data.images.encoded import EncodedImages, common_share
from fleetx.data.images.pace import Pace, Turn
from tests.data.images.pictures import KINDS, laid_out, photograph, written

HERE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
LEVELS = 5.0 if HERE.type == "cuda" else 1.0
"""Mean difference of two decoders, each of which makes coarsely stored colours finer its way."""
VIEW = View(image_shape=(3, 64, 80), resize_short_size=96)
SIZES = [(150, 100), (97, 131), (80, 64), (31, 44), (700, 560), (1300, 1100)]


def by_pil(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """Stands in for the one call that takes a GPU."""
    found = []
    for data in files:
        try:
            picture = Pictures.open(io.BytesIO(data.numpy().tobytes())).convert("RGB")
        except (OSError, SyntaxError) as error:
            raise RuntimeError(str(error)) from error
        found.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().to(device))
    return found


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, its loaders decode by PIL."""
    if HERE.type == "cpu":
        monkeypatch.setattr(card, "decode_jpegs", by_pil)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LabelledFiles:
    folder = tmp_path_factory.mktemp("photographs")
    return laid_out(folder, [written(photograph(*size, seed=n)) for n, size in enumerate(SIZES)])


def levels(images: Tensor) -> Tensor:
    """Bytes again."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (VIEW.image_mean, VIEW.image_std))
    return (images.cpu() * std + mean) * 255


def on_card(images: Images, indices: range) -> tuple[Tensor, Tensor]:
    source = EncodedImages(images)
    found, labels = CardDecoder(source, HERE).work(source.__getitems__(indices))
    assert found.device == labels.device == HERE
    return levels(found), labels.cpu()


def on_host(images: Images, indices: range) -> tuple[Tensor, Tensor]:
    found, labels = images.__getitems__(indices)
    return found.float(), labels


def differences(images: Images) -> list[float]:
    """How far each image of the card is from the host's, in levels of 256."""
    every = range(len(images))
    (mine, labels), (theirs, expected) = on_card(images, every), on_host(images, every)
    assert labels.tolist() == expected.tolist()
    assert mine.shape == theirs.shape
    return [float((a - b).abs().mean()) for a, b in zip(mine, theirs, strict=True)]


@pytest.mark.parametrize("train", [True, False])
def test_pixels_are_those_of_the_host_for_the_same_seed(files: LabelledFiles, train: bool) -> None:
    images = Images(files, VIEW, train=train, seed=5)
    for epoch in range(3):
        images.set_epoch(epoch)
        found = differences(images)
        assert max(found) < LEVELS
        assert np.mean(found) < LEVELS / 2
    if train:
        other = Images(files, VIEW, train=True, seed=6)
        mine, _ = on_card(images, range(len(files)))
        theirs, _ = on_host(other, range(len(files)))
        assert (mine - theirs).abs().mean() > 10, "another seed shows other parts"


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_all_kinds(tmp_path: Path, kind: str) -> None:
    found = laid_out(tmp_path, [written(photograph(200, 150), kind)])
    assert differences(Images(found, VIEW, train=True, seed=1))[0] < LEVELS


def test_what_cards_do_not_decode_is_decoded_where_it_is_read(tmp_path: Path) -> None:
    found = laid_out(tmp_path, [written(photograph(90, 70), kind) for kind in KINDS])
    batch = EncodedImages(Images(found, VIEW, train=True)).__getitems__(range(len(KINDS)))
    encoded = {kind for kind, entry in zip(KINDS, batch.entries(), strict=True) if entry.is_encoded}
    assert encoded == {"plain", "4:4:4", "grey", "restarts"}
    assert common_share(found) == 0.5


def test_blank_entries_stay_blank(files: LabelledFiles) -> None:
    images = Images(files, VIEW, train=False, multiple_of=4)
    found, labels = on_card(images, range(len(images)))
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert found[6:].abs().max() < 1e-3


@pytest.fixture
def damaged(tmp_path: Path) -> LabelledFiles:
    """The third file ends too early, and the fifth has a table of codes that cannot be."""
    data = [written(photograph(100, 80, seed=n)) for n in range(6)]
    data[2] = data[2][:-300]
    lengths = data[4].index(b"\xff\xc4") + 5  # of which decoders notice, and nobody else
    data[4] = data[4][:lengths] + b"\xff" * 16 + data[4][lengths + 16 :]
    return laid_out(tmp_path, data)


def test_broken_files_are_skipped_as_the_host_does(
    damaged: LabelledFiles, caplog: pytest.LogCaptureFixture
) -> None:
    every = range(len(damaged))
    expected = on_host(Images(damaged, VIEW, train=True), every)
    caplog.clear()
    with caplog.at_level(logging.INFO, "fleetx"):
        found = on_card(Images(damaged, VIEW, train=True), every)
    assert found[1].tolist() == expected[1].tolist() == [0, 1, 3, 3, 5, 5]
    assert (found[0] - expected[0]).abs().mean() < LEVELS
    assert caplog.text.count("2.jpg is broken") == 1
    assert caplog.text.count("4.jpg is broken") == 1
    assert "4.jpg: the host decodes it, because the card cannot" in caplog.text


def test_a_broken_file_stops_where_that_is_asked(damaged: LabelledFiles) -> None:
    images = Images(damaged, VIEW, train=True, on_broken="raise")
    with pytest.raises(BrokenImageError, match=r"2\.jpg' is broken \(it ends too early\)"):
        on_card(images, range(6))
    with pytest.raises(BrokenImageError, match=r"4\.jpg' is broken"):
        on_card(images, range(3, 6))


def test_files_that_the_card_alone_does_not_like_come_from_the_host(files: LabelledFiles) -> None:
    """It may refuse what its makers did not think of, and decode what it should not."""

    def picky(data: list[Tensor], device: torch.device) -> list[Tensor]:
        found = card.decode_jpegs(data, device)
        if any(image.shape[1] == 131 for image in found):
            raise RuntimeError("no such subsampling")
        return [image[:, 1:] if image.shape[1] == 44 else image for image in found]

    images = Images(files, VIEW, train=True)
    source = EncodedImages(images)
    every = range(len(files))
    found, labels = CardDecoder(source, HERE, picky).work(source.__getitems__(every))
    expected, _ = on_host(images, every)
    assert labels.tolist() == [*every]
    apart = (levels(found) - expected).abs().flatten(1)
    assert apart.mean(1).max() < LEVELS
    # OpenCV for ARM rounds otherwise where it enlarges one colour after the other.
    assert apart[1].max() < 1.01, "the host's pixels"
    assert apart[3].max() < 1.01
    assert apart[5].max() > 1.01, "those of others are further off"


def test_memory_that_does_not_suffice_is_no_broken_file(files: LabelledFiles) -> None:
    def full(data: list[Tensor], device: torch.device) -> list[Tensor]:
        raise torch.OutOfMemoryError("no room")

    source = EncodedImages(Images(files, VIEW, train=True))
    with pytest.raises(torch.OutOfMemoryError):
        CardDecoder(source, HERE, full).work(source.__getitems__([0]))


def everything(loader: Any) -> list[tuple[list[int], bytes]]:
    return [(labels.tolist(), images.cpu().numpy().tobytes()) for images, labels in loader]


@pytest.fixture
def by_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loader take the card, or what stands in for it."""

    def chosen(decoder: str, files: LabelledFiles, cores: int) -> Decoder:
        return Decoder(2, HERE) if decoder == "gpu" else choose_decoder(decoder, files, cores)

    monkeypatch.setattr(loaders, "choose_decoder", chosen)


@pytest.mark.usefixtures("by_card")
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_gives_what_that_of_the_host_gives(files: LabelledFiles, processes: int) -> None:
    def passes(decoder: str) -> list[tuple[Tensor, Tensor]]:
        images = Images(files, VIEW, train=True, seed=2)
        options: dict[str, Any] = {"shuffle": True, "num_workers": processes, "decoder": decoder}
        loader = image_loader(images, 4, **options)
        return [batch for _ in range(2) for batch in loader]

    for (mine, labels), (theirs, expected) in zip(passes("gpu"), passes("cpu"), strict=True):
        assert labels.tolist() == expected.tolist()
        assert (levels(mine) - levels(theirs)).abs().mean() < LEVELS
        assert mine.is_contiguous(memory_format=torch.channels_last)
        assert mine.device == HERE


class Places(Dataset[Any]):
    """Batches that tell their place in the order, and whether there is time to decode them."""

    def __init__(self, pace: Pace) -> None:
        self.turn = Turn(pace)

    def __len__(self) -> int:
        return 8

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.turn.next_batch()
        return [(index, self.turn.has_time()) for index in indices]


@pytest.mark.parametrize("given", [0, 2])
def test_a_process_has_time_until_its_batch_is_needed(given: int) -> None:
    pace = Pace()
    loader: Any = DataLoader(
        Places(pace), 1, num_workers=2, persistent_workers=True, collate_fn=lambda batch: batch[0]
    )
    for _ in range(2):
        pace.begin()
        for _ in range(given):
            pace.give()
        assert list(loader) == [(place, place - given > 4) for place in range(8)]
    # Who trains has no time: a loader without processes leaves everything to the card.
    places = Places(pace)
    assert not any(places.__getitems__([9])[0][1] for _ in range(20))


def test_the_cores_and_the_card_share_a_batch(
    files: LabelledFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counted(data: list[Tensor], device: torch.device) -> list[Tensor]:
        decoded.append(len(data))
        return real(data, device)

    real = card.decode_jpegs
    monkeypatch.setattr(card, "decode_jpegs", counted)
    monkeypatch.setattr(loaders, "choose_decoder", lambda *given: Decoder(2, HERE, shared=True))
    many = LabelledFiles.of(files.folder, [f"{n % 6}.jpg" for n in range(24)], range(24))
    images = Images(many, VIEW, train=True)
    batches = list(image_loader(images, 1))
    expected, labels = on_host(images, range(24))
    assert [int(label) for _, label in batches] == labels.tolist()
    assert (levels(torch.cat([batch for batch, _ in batches])) - expected).abs().mean() < LEVELS
    # The first ones are needed at once, so that the card decodes them.
    assert decoded[:5] == [1] * 5


@pytest.mark.usefixtures("by_card")
def test_an_epoch_is_resumed_in_its_middle(files: LabelledFiles) -> None:
    def loader() -> Any:
        images = Images(files, VIEW, train=True)
        return image_loader(images, 2, shuffle=True, num_workers=1, decoder="gpu")

    whole = loader()
    everything(whole)
    expected = everything(whole)
    stopped = loader()
    everything(stopped)
    next(iter(stopped))
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert everything(resumed) == expected[1:]


def test_a_flag_is_in_force_or_refused(files: LabelledFiles) -> None:
    with pytest.raises(ValueError, match="decoder='nvjpeg' is not known; use 'auto', 'gpu' or"):
        choose_decoder("nvjpeg", files, 4)
    assert choose_decoder("cpu", files, 4) == Decoder(4)
    if HERE.type == "cuda":
        assert choose_decoder("gpu", files, 16) == Decoder(4, HERE)
        return
    refused = r"decoder='gpu' cannot be in force: this worker computes on 'cpu'.* Set decoder to"
    with pytest.raises(ValueError, match=refused):
        choose_decoder("gpu", files, 4)
    assert choose_decoder("auto", files, 4) == Decoder(4)


def test_what_is_lacking_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(files: list[Tensor], device: torch.device) -> list[Tensor]:
        raise RuntimeError("torchvision not compiled with nvJPEG support\nand more")

    monkeypatch.setattr(card, "decode_jpegs", without)
    there = torch.device("cuda", 7)
    assert lacking(there) == (
        "torchvision cannot call nvJPEG here (torchvision not compiled with nvJPEG support)"
    )
    lacking.cache_clear()


@pytest.mark.parametrize(
    ("reason", "deterministic", "said"),
    [
        ("", False, "takes both: the cores decode the images that they have time for"),
        ("nvJPEG is not there", False, "takes the cores alone, because nvJPEG is not there"),
        ("", True, "takes the cores alone, because which images a GPU would decode depends on"),
    ],
)
def test_auto_says_once_whom_it_takes_and_why(
    files: LabelledFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    reason: str,
    deterministic: bool,
    said: str,
) -> None:
    """As on a worker with a card, for machines without one."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr(decoders, "find_device", lambda: device)
    monkeypatch.setattr(decoders, "lacking", lambda device: reason)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    decoders._helps.cache_clear()
    with caplog.at_level(logging.INFO, "fleetx"):
        chosen = [choose_decoder("auto", files, 16) for _ in range(2)]
    decoders._helps.cache_clear()
    both = said.startswith("takes both")
    assert chosen == [Decoder(16, device, shared=True) if both else Decoder(16)] * 2
    assert caplog.text.count("decoder='auto'") == 1
    assert said in caplog.text


@pytest.mark.parametrize("decoder", ["auto", "gpu"])
def test_a_card_that_will_not_do_both_at_a_time_is_told_of_once(
    files: LabelledFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    decoder: str,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setattr(decoders, "find_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(decoders, "lacking", lambda device: "")
    for cached in (decoders._helps, decoders._tell_of_queues):
        cached.cache_clear()
    for _ in range(2):
        choose_decoder(decoder, files, 16)
    for cached in (decoders._helps, decoders._tell_of_queues):
        cached.cache_clear()
    assert caplog.text.count("decodes images and trains one after the other") == 1
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 is set" in caplog.text


@pytest.mark.skipif(HERE.type == "cpu", reason="needs a GPU")
def test_a_kernel_cuts_as_torch_does() -> None:
    numbers = np.random.default_rng(0)
    sizes = numbers.integers(1, 300, (80, 2)).tolist()
    images = [torch.from_numpy(photograph(width, height)) for width, height in sizes]
    images = [image.permute(2, 0, 1) for image in images]
    images[::2] = [image.contiguous() for image in images[::2]]
    parts = []
    for at, (width, height) in enumerate(sizes):
        by = (1, 2, 4, 8)[at % 4]
        right, bottom = -(-width // by), -(-height // by)
        parts.append(Part(right // 3, bottom // 4, right, bottom, by))
    mirrored = [at % 3 == 0 for at in range(80)]
    expected = cut(images, parts, mirrored, (61, 47))
    found = cut([image.to(HERE) for image in images], parts, mirrored, (61, 47)).cpu()
    difference = (found.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 0.05


@pytest.mark.skipif(HERE.type == "cpu", reason="needs a GPU")
def test_batches_are_not_overwritten_while_they_are_used(files: LabelledFiles) -> None:
    """The card decodes ahead on another stream, into memory that earlier batches had."""
    images = Images(files, VIEW, train=True)

    def sums(slow: bool) -> list[float]:
        loader = image_loader(images, 3, num_workers=0, decoder="gpu")
        found = []
        for _ in range(10):
            loader.set_epoch(0)
            for batch, _ in loader:
                if slow:  # what is queued reads the batch long after the next ones are decoded
                    torch.cuda._sleep(20_000_000)
                found.append(batch.double().sum())
                del batch
        return [float(number) for number in found]

    assert sums(slow=True) == sums(slow=False)
