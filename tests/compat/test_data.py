"""Readers, data sets and loaders of Paddle."""

import gzip
import itertools
import logging
import struct
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.compat.paddle.dataset import common


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FLEETX_DATASETS", raising=False)


def numbers(count: int) -> Any:
    return lambda: iter(range(count))


def test_batches() -> None:
    import paddle

    assert list(paddle.batch(numbers(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(paddle.batch(numbers(5), batch_size=2, drop_last=True)()) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="positive integer"):
        paddle.batch(numbers(5), batch_size=0)
    from paddle import fluid

    assert fluid.io.batch is paddle.batch


def test_readers_of_readers() -> None:
    import paddle

    shuffled = list(paddle.reader.shuffle(numbers(10), buf_size=4)())
    assert sorted(shuffled[:4]) == [0, 1, 2, 3]
    assert sorted(shuffled) == list(range(10))
    double = paddle.reader.xmap_readers(lambda x: 2 * x, numbers(50), 4, 8, order=True)
    assert list(double()) == list(range(0, 100, 2))
    assert list(paddle.reader.buffered(numbers(9), 2)()) == list(range(9))
    assert list(paddle.reader.map_readers(max, numbers(3), numbers(3))()) == [0, 1, 2]
    assert list(paddle.reader.chain(numbers(2), numbers(2))()) == [0, 1, 0, 1]
    both = paddle.reader.compose(numbers(2), lambda: iter([(5, 6), (7, 8)]))
    assert list(both()) == [(0, 5, 6), (1, 7, 8)]
    with pytest.raises(paddle.reader.ComposeNotAligned):
        list(paddle.reader.compose(numbers(2), numbers(3))())
    assert list(paddle.reader.firstn(numbers(9), 2)()) == [0, 1]
    source = iter(range(3))
    kept = paddle.reader.cache(lambda: source)
    assert list(kept()) == list(kept()) == [0, 1, 2]
    mixed = paddle.reader.multiprocess_reader([numbers(3), numbers(2)], use_pipe=False)
    assert sorted(mixed()) == [0, 0, 1, 1, 2]
    from paddle.reader import creator

    assert list(creator.np_array(np.eye(2))())[1].tolist() == [0.0, 1.0]


def test_an_error_of_a_mapper_reaches_the_script() -> None:
    import paddle

    with pytest.raises(ZeroDivisionError):
        list(paddle.reader.xmap_readers(lambda x: 1 // x, numbers(3), 2, 4)())


FORMS = {
    "mnist.train": (784, -1.0, 1.0),
    "mnist.test": (784, -1.0, 1.0),
    "cifar.train10": (3072, 0.0, 1.0),
    "cifar.test100": (3072, 0.0, 1.0),
}


@pytest.mark.parametrize("name", FORMS)
def test_pictures_are_drawn_in_the_form_of_real_ones(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    import paddle

    module, _, split = name.partition(".")
    size, low, high = FORMS[name]
    reader = getattr(getattr(paddle.dataset, module), split)()
    image, label = next(iter(reader()))
    assert image.shape == (size,)
    assert image.dtype == np.float32
    assert low <= image.min()
    assert image.max() <= high
    assert isinstance(label, int)
    again = next(iter(reader()))
    assert np.array_equal(again[0], image)


def test_what_is_drawn_can_be_learned() -> None:
    import paddle

    train = list(itertools.islice(paddle.dataset.mnist.train()(), 600))
    test = list(itertools.islice(paddle.dataset.mnist.test()(), 100))
    means = [np.mean([x for x, y in train if y == kind], axis=0) for kind in range(10)]
    right = sum(int(np.argmin([np.sum((x - m) ** 2) for m in means])) == y for x, y in test)
    assert right > 95


def test_flowers_are_drawn_too() -> None:
    import paddle

    for reader in (
        paddle.dataset.flowers.train(use_xmap=True),
        paddle.dataset.flowers.test(use_xmap=False),
        paddle.dataset.flowers.valid(),
    ):
        image, label = next(iter(reader()))
        assert image.shape == (3 * 224 * 224,)
        assert 0 <= label < 102
    sizes = paddle.dataset.flowers.train(mapper=lambda sample: len(sample[0]))
    assert next(iter(sizes())) > 100
    endless = paddle.dataset.flowers.test(cycle=True)
    assert len(list(itertools.islice(endless(), 70))) == 70


def test_texts_are_drawn_too() -> None:
    import paddle

    words = paddle.dataset.imdb.word_dict()
    text, label = next(iter(paddle.dataset.imdb.train(words)()))
    assert max(text) < len(words)
    assert label in {0, 1}
    known = paddle.dataset.imikolov.build_dict(min_word_freq=50)
    assert len(next(iter(paddle.dataset.imikolov.train(known, 5)()))) == 5
    kind = paddle.dataset.imikolov.DataType.SEQ
    here, there = next(iter(paddle.dataset.imikolov.test(known, -1, kind)()))
    assert here[1:] == there[:-1]
    source, target, follows = next(iter(paddle.dataset.wmt16.train(100, 80)()))
    assert (source[0], source[-1]) == (0, 1)
    assert target[1:] == follows[:-1]
    assert max(target) < 80
    assert len(paddle.dataset.wmt16.get_dict("de", 50, reverse=True)) == 50
    assert len(next(iter(paddle.dataset.wmt14.test(30)()))) == 3
    assert len(next(iter(paddle.dataset.conll05.test()()))) == 9
    assert next(iter(paddle.dataset.sentiment.train()()))[1] in {0, 1}
    sample = next(iter(paddle.dataset.movielens.train()()))
    assert len(sample) == 8
    assert sample[0][0] <= paddle.dataset.movielens.max_user_id()
    features, price = next(iter(paddle.dataset.uci_housing.train()()))
    assert (features.shape, price.shape) == ((13,), (1,))


def mnist_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(2 * 784, dtype=np.uint8).tobytes()
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 2051, 2, 28, 28) + pixels)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 2049, 2) + bytes([7, 3]))


@pytest.mark.parametrize("where", ["home", "mirror", "mirror flat"])
def test_real_files_are_read_from_this_machine_or_a_mirror(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import paddle

    if where == "home":
        mnist_files(tmp_path / "home" / "mnist")
    else:
        mnist_files(tmp_path / "there" / ("" if "flat" in where else "mnist"))
        monkeypatch.setenv("FLEETX_DATASETS", str(tmp_path / "there"))
    found = list(paddle.dataset.mnist.train()())
    assert [label for _, label in found] == [7, 3]
    assert np.allclose(found[0][0][:3], np.array([0, 1, 2]) / 255 * 2 - 1)
    images = tmp_path / "home" / "mnist" / "train-images-idx3-ubyte.gz"
    assert (
        paddle.dataset.common.md5file(str(images))
        == __import__("hashlib").md5(images.read_bytes()).hexdigest()
    )


def test_an_archive_of_cifar_is_read(tmp_path: Path) -> None:
    import paddle

    from fleetx.compat.files import pickles

    folder = tmp_path / "home" / "cifar"
    folder.mkdir(parents=True)
    batch = {"data": np.full((2, 3072), 255, np.uint8), "labels": [4, 5]}
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        text = pickles.packed(batch, 2)
        info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.size = len(text)
        archive.addfile(info, BytesIO(text))
    found = list(paddle.dataset.cifar.train10()())
    assert [label for _, label in found] == [4, 5]
    assert np.all(found[0][0] == 1.0)


def test_housing_is_scaled_as_paddle_does(tmp_path: Path) -> None:
    import paddle

    folder = tmp_path / "home" / "uci_housing"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).random((10, 14))
    np.savetxt(folder / "housing.data", table)
    found = list(paddle.dataset.uci_housing.train()())
    assert len(found) == 8
    column = table[:, 0]
    wanted = (column - column.mean()) / (column.max() - column.min())
    assert np.allclose([row[0] for row, _ in found], wanted[:8])


def test_download_says_what_to_do(tmp_path: Path) -> None:
    import paddle

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("x")
    place = paddle.dataset.common.download(f"file://{tmp_path}/files/a.txt", "own", None)
    assert Path(place).read_text() == "x"
    with pytest.raises(RuntimeError, match="another MD5 sum"):
        paddle.dataset.common.download(f"file://{tmp_path}/files/a.txt", "own", "0" * 32)
    with pytest.raises(RuntimeError, match="FLEETX_DATASETS"):
        paddle.dataset.common.download(f"file://{tmp_path}/files/b.txt", "own", None)


def squares(count: int = 10) -> Any:
    import paddle

    class Squares(paddle.io.Dataset):  # type: ignore[misc]
        def __getitem__(self, idx: int) -> Any:
            return np.full(3, idx, "float32"), idx * idx

        def __len__(self) -> int:
            return count

    return Squares()


def test_eager_batches_are_lists_of_tensors() -> None:
    import paddle

    loader = paddle.io.DataLoader(
        squares(), batch_size=4, shuffle=False, drop_last=False, num_workers=0
    )
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    images, labels = batches[0]
    assert isinstance(images, paddle.Tensor)
    assert images.shape == [4, 3]
    assert labels.numpy().tolist() == [0, 1, 4, 9]
    assert len(list(paddle.io.DataLoader(squares(), batch_size=4, drop_last=True))) == 2
    assert len(list(loader())) == 3


def test_collate_and_workers() -> None:
    import paddle

    seen = paddle.io.DataLoader(
        squares(6),
        batch_size=3,
        num_workers=2,
        collate_fn=_sums,
        worker_init_fn=_nothing,
        use_shared_memory=False,
        return_list=True,
        places=[paddle.CPUPlace()],
    )
    assert [batch[0].numpy().tolist() for batch in seen] == [[9.0], [36.0]]


def _sums(samples: Any) -> Any:
    return [np.array([sum(image.sum() for image, _ in samples)], "float32")]


def _nothing(worker: int) -> None:
    return None


def test_static_batches_are_feeds_by_name() -> None:
    import paddle

    paddle.enable_static()
    x = paddle.static.data(name="x", shape=[None, 3], dtype="float32")
    y = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
    total = paddle.mean(x) + paddle.mean(paddle.cast(y, "float32"))
    exe = paddle.static.Executor(paddle.CPUPlace())
    loader = paddle.io.DataLoader(
        squares(4), feed_list=[x, y], places=paddle.CPUPlace(), batch_size=2, return_list=False
    )
    found = [float(exe.run(feed=data, fetch_list=[total])[0]) for data in loader]
    assert found == [1.0, 9.0]
    assert [float(exe.run(feed=data[0], fetch_list=[total])[0]) for data in loader] == found


def test_iterable_data_sets() -> None:
    import paddle

    class Stream(paddle.io.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            yield from (np.float32(number) for number in range(5))

    loader = paddle.io.DataLoader(Stream(), batch_size=2)
    assert [batch.numpy().tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="order of its own"):
        paddle.io.DataLoader(Stream(), batch_size=2, shuffle=True)


def test_data_sets_made_of_data_sets() -> None:
    import paddle

    io = paddle.io
    pairs = io.TensorDataset([np.arange(4), np.arange(4) * 2])
    assert pairs[3] == (3, 6)
    assert io.ConcatDataset([pairs, pairs])[5] == (1, 2)
    assert io.ComposeDataset([pairs, pairs])[1] == (1, 2, 1, 2)
    assert [len(part) for part in io.random_split(pairs, [3, 1])] == [3, 1]
    assert io.Subset(pairs, [2])[0] == (2, 4)
    assert list(io.ChainDataset([[1], [2]])) == [1, 2]


SHARES = [
    (11, 2, False, [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 0]]]),
    (13, 3, False, [[[0, 1, 2], [9, 10]], [[3, 4, 5], [11, 12]], [[6, 7, 8], [0, 1]]]),
    (11, 2, True, [[[6, 0], [1, 7]], [[4, 10], [9, 3]], [[2, 8], [0, 5]]]),
    (13, 3, True, [[[1, 6, 8], [7, 11]], [[9, 1, 4], [3, 0]], [[2, 0, 10], [5, 12]]]),
]
"""Samples, of a batch, shuffled, what Paddle 2.6.2 gives each of three workers."""


@pytest.mark.parametrize(("count", "size", "shuffle", "wanted"), SHARES)
def test_samplers_share_as_paddle_does(
    count: int, size: int, shuffle: bool, wanted: list[list[list[int]]]
) -> None:
    import paddle

    for rank in range(3):
        sampler = paddle.io.DistributedBatchSampler(
            range(count), batch_size=size, num_replicas=3, rank=rank, shuffle=shuffle
        )
        assert len(sampler) == 2
        assert list(sampler) == wanted[rank]
        sampler.set_epoch(0)
        assert list(sampler) == wanted[rank]


def test_samplers_draw_from_numpy() -> None:
    import paddle

    np.random.seed(3)
    first = list(paddle.io.BatchSampler(dataset=range(5), batch_size=2, shuffle=True))
    np.random.seed(3)
    order = np.random.choice(5, 5, replace=False).tolist()
    assert [number for batch in first for number in batch] == order
    sampler = paddle.io.RandomSampler(range(9), replacement=True, num_samples=4)
    assert len(list(sampler)) == 4
    weighted = paddle.io.WeightedRandomSampler([0, 1, 0], 3)
    assert list(weighted) == [1, 1, 1]
    with pytest.raises(ValueError, match="one of the two"):
        paddle.io.BatchSampler(batch_size=2)


def samples() -> Any:
    for number in range(5):
        yield np.full(2, number, "float32"), number


def test_loaders_from_generators_feed_programs() -> None:
    import paddle
    from paddle import fluid

    x = fluid.data(name="x", shape=[None, 2], dtype="float32")
    y = fluid.data(name="y", shape=[None, 1], dtype="int64")
    total = fluid.layers.mean(x) + fluid.layers.mean(fluid.layers.cast(y, "float32"))
    exe = fluid.Executor(fluid.CPUPlace())

    def means(loader: Any) -> list[float]:
        return [float(exe.run(feed=data, fetch_list=[total])[0]) for data in loader()]

    options = {"feed_list": [x, y], "capacity": 4, "use_double_buffer": True, "iterable": True}
    loader = paddle.io.DataLoader.from_generator(**options)
    loader.set_sample_generator(samples, batch_size=2, drop_last=True, places=fluid.cpu_places())
    assert means(loader) == [1.0, 5.0]
    loader = fluid.io.DataLoader.from_generator(**options)
    loader.set_sample_list_generator(paddle.batch(samples, 2), fluid.cpu_places())
    assert means(loader) == [1.0, 5.0, 8.0]
    reader = fluid.io.PyReader(feed_list=[x, y], capacity=4, iterable=True, return_list=True)
    reader.decorate_batch_generator(
        lambda: iter([(np.ones((1, 2), "float32"), np.ones((1, 1), "int64"))]),
        places=fluid.CPUPlace(),
    )
    assert len(next(iter(reader()))) == 2


def test_loaders_that_feed_by_themselves_end_with_an_exception() -> None:
    from paddle import fluid

    x = fluid.data(name="x", shape=[None, 2], dtype="float32")
    y = fluid.data(name="y", shape=[None, 1], dtype="int64")
    total = fluid.layers.mean(x) + fluid.layers.mean(fluid.layers.cast(y, "float32"))
    loader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=4, iterable=False)
    loader.set_sample_generator(samples, batch_size=2)
    exe = fluid.Executor(fluid.CPUPlace())
    for _ in range(2):
        loader.start()
        found = [float(exe.run(fetch_list=[total.name])[0]) for _ in range(2)]
        assert found == [1.0, 5.0]
        with pytest.raises(fluid.core.EOFException):
            exe.run(fetch_list=[total.name])
        loader.reset()


def test_eager_loaders_from_generators() -> None:
    import paddle

    loader = paddle.io.DataLoader.from_generator(capacity=2, return_list=True)
    loader.set_sample_list_generator(paddle.batch(samples, 2))
    assert [labels.numpy().tolist() for _, labels in loader] == [[0, 1], [2, 3], [4]]


def test_a_feeder_makes_arrays_of_samples() -> None:
    from paddle import fluid

    image = fluid.layers.data("image", [1, 2, 2])
    label = fluid.layers.data("label", [1], dtype="int64")
    feeder = fluid.DataFeeder(feed_list=[image, label], place=fluid.CPUPlace())
    feed = feeder.feed([(np.arange(4), 7), (np.arange(4), 8)])
    assert feed["image"].shape == (2, 1, 2, 2)
    assert feed["image"].dtype == np.float32
    assert feed["label"].tolist() == [[7], [8]]
    with pytest.raises(ValueError, match="feed_list has 2"):
        feeder.feed([(1,)])
    by_name = fluid.DataFeeder(feed_list=["label"], place=None)
    assert by_name.feed([(1,), (2,)])["label"].shape == (2, 1)


def test_a_feeder_makes_lod_tensors_of_ragged_samples() -> None:
    from paddle import fluid

    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    table = fluid.layers.embedding(words, [10, 4], param_attr=fluid.ParamAttr("t"))
    pooled = fluid.layers.sequence_pool(table, "sum")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    rows = np.array(fluid.global_scope().find_var("t").get_tensor())
    wanted = np.stack([rows[[1, 2]].sum(0), rows[[3, 4, 5]].sum(0)])
    feed = fluid.DataFeeder([words], fluid.CPUPlace()).feed([([1, 2],), ([3, 4, 5],)])
    assert feed["words"].recursive_sequence_lengths() == [[2, 3]]
    made = fluid.create_lod_tensor(np.array([[1], [2], [3], [4], [5]]), [[2, 3]], fluid.CPUPlace())
    for given in (feed, {"words": made}, {"words": [[1, 2], [3, 4, 5]]}):
        assert np.allclose(exe.run(feed=given, fetch_list=[pooled])[0], wanted)
    single = exe.run(feed={"words": np.array([[1], [2]])}, fetch_list=[pooled])[0]
    assert np.allclose(single, rows[[1, 2]])


GENERATOR = """
import paddle.fluid.incubate.data_generator as dg

class Words(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def reader():
            label, *words = line.split()
            yield [("words", [int(word) for word in words]), ("label", [int(label)])]
        return reader

Words().run_from_stdin()
"""


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_slot_data_sets_train_programs(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from paddle import fluid

    (tmp_path / "reader.py").write_text(GENERATOR)
    (tmp_path / "part-0").write_text("1 3 4 5\n0 6\n" * 8)
    words = fluid.data(name="words", shape=[None, 1], dtype="int64", lod_level=1)
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, [10, 4]), "sum")
    scores = fluid.layers.fc(pooled, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(scores, label))
    fluid.optimizer.SGD(0.5).minimize(loss)
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_use_var([words, label])
    dataset.set_pipe_command(f"python {tmp_path / 'reader.py'}")
    dataset.set_batch_size(4)
    dataset.set_thread(2)
    dataset.set_filelist([str(tmp_path / "part-0")])
    if kind == "InMemoryDataset":
        dataset.load_into_memory()
        dataset.local_shuffle()
        assert dataset.get_memory_data_size() == 16
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    caplog.set_level(logging.INFO)
    for _ in range(3):
        exe.train_from_dataset(
            program=fluid.default_main_program(),
            dataset=dataset,
            fetch_list=[loss],
            fetch_info=["loss"],
            print_period=4,
            debug=False,
        )
    told = [record.message for record in caplog.records if "loss" in record.message]
    assert float(told[-1].split()[-1]) < float(told[0].split()[-1])
    with pytest.raises(ValueError, match="does not exist"):
        fluid.DatasetFactory().create_dataset("OtherDataset")
