"""``paddle.text``: the data sets of texts, one sample by number."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.dataset import (
    conll05,
    imdb,
    imikolov,
    movielens,
    uci_housing,
    wmt14,
    wmt16,
)
from fleetx.compat.paddle.io.dataset import Dataset

__all__ = ["WMT14", "WMT16", "Conll05st", "Imdb", "Imikolov", "Movielens", "UCIHousing"]


class _Read(Dataset):
    """Samples of a reader of ``paddle.dataset``, kept."""

    def __init__(self, mode: str, readers: dict[str, Callable[[], Iterable[Any]]]) -> None:
        if mode.lower() not in readers:
            raise ValueError(f"{type(self).__name__}(mode={mode!r}): one of {', '.join(readers)}.")
        self.mode = mode.lower()
        self._samples = [self._arrays(sample) for sample in readers[self.mode]()]

    def _arrays(self, sample: Any) -> tuple[Any, ...]:
        return tuple(np.array(part) for part in sample)

    @override
    def __getitem__(self, index: int) -> Any:
        return self._samples[index]

    @override
    def __len__(self) -> int:
        return len(self._samples)


class UCIHousing(_Read):
    """Houses and their prices."""

    def __init__(self, data_file: Any = None, mode: str = "train", download: bool = True) -> None:
        super().__init__(mode, {"train": uci_housing.train(), "test": uci_housing.test()})

    @override
    def _arrays(self, sample: Any) -> tuple[Any, ...]:
        return tuple(np.asarray(part, "float32") for part in sample)


class Imdb(_Read):
    """Opinions on films."""

    def __init__(
        self, data_file: Any = None, mode: str = "train", cutoff: int = 150, download: bool = True
    ) -> None:
        self.word_idx = imdb.word_dict()
        super().__init__(
            mode, {"train": imdb.train(self.word_idx), "test": imdb.test(self.word_idx)}
        )

    @override
    def _arrays(self, sample: Any) -> tuple[Any, ...]:
        words, label = sample
        return np.array(words), np.array([label])


class Imikolov(_Read):
    """Sentences, or words in a row."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        data_file: Any = None,
        data_type: str = "NGRAM",
        window_size: int = -1,
        mode: str = "train",
        min_word_freq: int = 50,
        download: bool = True,
    ) -> None:
        kind = getattr(imikolov.DataType, data_type.upper())
        self.word_idx = imikolov.build_dict(min_word_freq)
        super().__init__(
            mode,
            {
                "train": imikolov.train(self.word_idx, window_size, kind),
                "test": imikolov.test(self.word_idx, window_size, kind),
            },
        )


class Movielens(_Read):
    """Ratings of films."""

    def __init__(
        self,
        data_file: Any = None,
        mode: str = "train",
        test_ratio: float = 0.1,
        rand_seed: int = 0,
        download: bool = True,
    ) -> None:
        super().__init__(mode, {"train": movielens.train(), "test": movielens.test()})


class Conll05st(_Read):
    """Sentences and the roles of their words."""

    def __init__(self, *files: Any, download: bool = True, **named: Any) -> None:
        self.word_dict, self.predicate_dict, self.label_dict = conll05.get_dict()
        super().__init__("test", {"test": conll05.test()})

    def get_dict(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """The numbers of words, verbs and labels."""
        return self.word_dict, self.predicate_dict, self.label_dict


class WMT14(_Read):
    """Sentences in two languages."""

    def __init__(
        self,
        data_file: Any = None,
        mode: str = "train",
        dict_size: int = 30000,
        download: bool = True,
    ) -> None:
        self.dict_size = dict_size
        readers = {"train": wmt14.train, "test": wmt14.test, "gen": wmt14.gen}
        super().__init__(mode, {name: made(dict_size) for name, made in readers.items()})

    def get_dict(self, reverse: bool = False) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """The numbers of words of both languages."""
        return wmt14.get_dict(self.dict_size, reverse)


class WMT16(_Read):
    """Sentences in English and German."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        data_file: Any = None,
        mode: str = "train",
        src_dict_size: int = -1,
        trg_dict_size: int = -1,
        lang: str = "en",
        download: bool = True,
    ) -> None:
        self._sizes = {"en": src_dict_size, "de": trg_dict_size}
        if lang != "en":
            self._sizes = {"de": src_dict_size, "en": trg_dict_size}
        readers = {"train": wmt16.train, "test": wmt16.test, "val": wmt16.validation}
        super().__init__(
            mode,
            {name: made(src_dict_size, trg_dict_size, lang) for name, made in readers.items()},
        )

    def get_dict(self, lang: str, reverse: bool = False) -> dict[Any, Any]:
        """The numbers of words of a language."""
        return wmt16.get_dict(lang, self._sizes[lang], reverse)
