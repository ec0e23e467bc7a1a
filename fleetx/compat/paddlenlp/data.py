"""``paddlenlp.data``: vocabularies, and batches of samples."""

import collections
import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.compat.paddle.io.sampler import BatchSampler

__all__ = ["BatchSampler", "Dict", "JiebaTokenizer", "Pad", "Stack", "Tuple", "Vocab"]


class Stack:
    """Samples of one shape, one behind the other."""

    def __init__(self, axis: int = 0, dtype: Any = None) -> None:
        self._axis, self._dtype = axis, dtype

    def __call__(self, data: Sequence[Any]) -> np.ndarray:
        """The batch of these samples."""
        found = np.stack([np.asarray(each) for each in data], axis=self._axis)
        return found.astype(self._dtype) if self._dtype else found


class Pad:
    """Samples of different lengths, filled up to the longest."""

    def __init__(
        self,
        pad_val: Any = 0,
        axis: int = 0,
        ret_length: bool | Any = None,
        dtype: Any = None,
        pad_right: bool = True,
    ) -> None:
        self._value, self._axis, self._lengths = pad_val, axis, ret_length
        self._dtype, self._right = dtype, pad_right

    def __call__(self, data: Sequence[Any]) -> Any:
        """The batch of these samples."""
        arrays = [np.asarray(each) for each in data]
        lengths = [array.shape[self._axis] for array in arrays]
        longest = max(lengths)
        rows = [self._filled(array, longest) for array in arrays]
        found = np.stack(rows).astype(self._dtype or arrays[0].dtype)
        if not self._lengths:
            return found
        kind = "int32" if self._lengths is True else self._lengths
        return found, np.asarray(lengths, kind)

    def _filled(self, array: np.ndarray, longest: int) -> np.ndarray:
        missing = longest - array.shape[self._axis]
        widths = [(0, 0)] * array.ndim
        widths[self._axis] = (0, missing) if self._right else (missing, 0)
        return np.pad(array, widths, constant_values=self._value)


class Tuple:
    """One function for each field of samples."""

    def __init__(self, fn: Any, *args: Any) -> None:
        self._functions = [*fn] if isinstance(fn, (list, tuple)) else [fn, *args]

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """The batch of these samples."""
        if len(data[0]) != len(self._functions):
            raise ValueError(
                f"a sample has {len(data[0])} fields, and {len(self._functions)} functions were "
                "given; give one for each."
            )
        found: list[Any] = []
        for at, function in enumerate(self._functions):
            made = function([sample[at] for sample in data])
            found += made if isinstance(made, (list, tuple)) else [made]
        return tuple(found)


class Dict:
    """One function for each key of samples."""

    def __init__(self, fn: Mapping[Any, Callable[[Any], Any]]) -> None:
        self._functions = dict(fn)

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """The batch of these samples."""
        found: list[Any] = []
        for key, function in self._functions.items():
            made = function([sample[key] for sample in data])
            found += made if isinstance(made, (list, tuple)) else [made]
        return tuple(found)


class Vocab:
    """Words and their numbers."""

    def __init__(  # noqa: PLR0917 (the order of paddlenlp)
        self,
        counter: Mapping[str, int] | None = None,
        max_size: int | None = None,
        min_freq: int = 1,
        token_to_idx: Mapping[str, int] | None = None,
        unk_token: str | None = None,
        pad_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        **kwargs: str,
    ) -> None:
        self.unk_token, self.pad_token = unk_token, pad_token
        self.bos_token, self.eos_token = bos_token, eos_token
        marks = [mark for mark in (unk_token, pad_token, bos_token, eos_token) if mark]
        marks += [mark for name, mark in kwargs.items() if name.endswith("_token")]
        if counter is not None:
            kept = sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))
            words = [word for word, count in kept if count >= min_freq and word not in marks]
            listed = [*dict.fromkeys(marks), *words[: max_size if max_size is not None else None]]
            token_to_idx = {word: number for number, word in enumerate(listed)}
        self._numbers: dict[str, int] = dict(token_to_idx or {})
        for mark in marks:
            self._numbers.setdefault(mark, len(self._numbers))
        self._words = {number: word for word, number in self._numbers.items()}

    @property
    def token_to_idx(self) -> Any:
        """Words -> numbers."""
        unknown = self._numbers.get(self.unk_token or "")
        if unknown is None:
            return self._numbers
        return collections.defaultdict(lambda: unknown, self._numbers)

    @property
    def idx_to_token(self) -> dict[int, str]:
        """Numbers -> words."""
        return self._words

    def to_indices(self, tokens: Any) -> Any:
        """The number of a word, or of each of several."""
        known = self.token_to_idx
        if isinstance(tokens, (list, tuple)):
            return [self.to_indices(token) for token in tokens]
        return known[tokens]

    __call__ = __getitem__ = to_indices

    def to_tokens(self, indices: Any) -> Any:
        """The word of a number, or of each of several."""
        if isinstance(indices, (list, tuple, np.ndarray)):
            return [self.to_tokens(int(number)) for number in indices]
        return self._words[int(indices)]

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, token: str) -> bool:
        return token in self._numbers

    @classmethod
    def load_vocabulary(
        cls,
        filepath: str | os.PathLike[str],
        unk_token: str | None = None,
        pad_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        **kwargs: Any,
    ) -> "Vocab":
        """The words of a file, one a line."""
        lines = Path(filepath).read_text(encoding="utf-8").splitlines()
        numbers = {line.rstrip("\n"): number for number, line in enumerate(lines)}
        return cls(
            token_to_idx=numbers,
            unk_token=unk_token,
            pad_token=pad_token,
            bos_token=bos_token,
            eos_token=eos_token,
            **kwargs,
        )

    @classmethod
    def from_dict(cls, token_to_idx: Mapping[str, int], **marks: Any) -> "Vocab":
        """From words and their numbers."""
        return cls(token_to_idx=token_to_idx, **marks)

    @classmethod
    def build_vocab(cls, iterator: Iterable[Sequence[str]], **options: Any) -> "Vocab":
        """From texts, by how often words come."""
        counts = collections.Counter(word for words in iterator for word in words)
        return cls(counter=counts, **options)

    def save_vocabulary(self, filepath: str | os.PathLike[str]) -> None:
        """Write the words, one a line."""
        words = [self._words[number] for number in sorted(self._words)]
        Path(filepath).write_text("\n".join(words) + "\n", encoding="utf-8")

    def to_json(self, path: str | None = None) -> str:
        """The words as JSON."""
        text = json.dumps({"token_to_idx": self._numbers}, ensure_ascii=False)
        if path:
            Path(path).write_text(text, encoding="utf-8")
        return text


class JiebaTokenizer:
    """Cuts Chinese text into words with jieba, if that is installed; else into characters."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        try:
            jieba = importlib.import_module("jieba")
        except ImportError:
            self._cut: Callable[[str], list[str]] = self._longest
        else:
            self._cut = jieba.lcut

    def _longest(self, sentence: str) -> list[str]:
        """The longest words of the vocabulary, from left to right."""
        found, at = [], 0
        while at < len(sentence):
            ends = range(min(len(sentence), at + 8), at, -1)
            end = next((end for end in ends if sentence[at:end] in self.vocab), at + 1)
            found.append(sentence[at:end])
            at = end
        return found

    def cut(self, sentence: str, cut_all: bool = False, use_hmm: bool = True) -> list[str]:
        """The words of a sentence."""
        return [word for word in self._cut(sentence) if word.strip()]

    def encode(self, sentence: str, cut_all: bool = False, use_hmm: bool = True) -> Any:
        """Their numbers."""
        return self.vocab.to_indices(self.cut(sentence))
