"""``fleetx.applications`` of FleetX 1: models that write themselves into the default program."""

from pathlib import Path
from typing import Any, ClassVar

import torch

from fleetx.applications.train_configs import parse_train_configs
from fleetx.compat.fleetx_1 import blocks
from fleetx.compat.fleetx_1.dataset.bert_dataset import NOT_ASKED, VOCABULARIES, load_bert_dataset
from fleetx.compat.fleetx_1.dataset.ctr_data_generator import DENSE, SPARSE, get_dataloader
from fleetx.compat.fleetx_1.dataset.feeding import Loader
from fleetx.compat.fleetx_1.dataset.transformer_dataset import transformer_data_generator
from fleetx.compat.fleetx_1.dataset.word2vec_dataset import load_w2v_dataset
from fleetx.compat.fleetx_1.dataset.word2vec_reader import load_w2v_reader
from fleetx.compat.fleetx_1.image_models import VGG16, Resnet50
from fleetx.compat.fleetx_1.model_base import ModelBase
from fleetx.compat.fleetx_1.trainers import CPUTrainer, MultiGPUTrainer, Trainer
from fleetx.compat.paddle.fluid.layers.io import declared
from fleetx.compat.paddle.fluid.layers.linear import embedding, fc
from fleetx.compat.paddle.fluid.layers.loss import (
    cross_entropy,
    sigmoid_cross_entropy_with_logits,
    softmax_with_cross_entropy,
)
from fleetx.compat.paddle.fluid.layers.metric_op import accuracy
from fleetx.compat.paddle.fluid.layers.norms import layer_norm
from fleetx.compat.paddle.fluid.layers.reduction import mean
from fleetx.compat.parameters import ParamAttr

__all__ = [
    "VGG16",
    "CPUTrainer",
    "ModelBase",
    "MultiGPUTrainer",
    "Resnet50",
    "Trainer",
    "parse_train_configs",
]


def _places(tokens: Any) -> Any:
    """The number of each position."""
    return torch.cumsum(torch.ones_like(tokens), 1) - 1


def _hides(where: Any) -> Any:
    """What is added to attention where nothing shall be seen."""
    return where.to(torch.float32) * -1e4


class BertBase(ModelBase):
    """BERT with hidden words: 12 layers of 768 features."""

    size: ClassVar[tuple[int, int, int]] = (12, 768, 12)

    def __init__(
        self,
        lang: str = "ch",
        *,
        vocab_size: int | None = None,
        layers: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        dropout: float = 0.1,
        max_seq_len: int = 512,
    ) -> None:
        """Write the model.

        Args:
            lang: "ch" or "en", which says how many words there are.
            vocab_size: another number of words.
            layers: how many, where it shall be smaller than BERT.
            width: features of a word.
            heads: of attention.
            dropout: the share that is left out.
            max_seq_len: the longest text.
        """
        super().__init__()
        self.lang, self.words = lang, vocab_size or VOCABULARIES[lang]
        count, wide, many = layers or self.size[0], width or self.size[1], heads or self.size[2]
        tokens = declared("src_ids", [None, None], "int64")
        asked = declared("mask_label", [None, None], "int64")
        x = self._embedded(tokens, wide, max_seq_len)
        mask = _hides(torch.eq(tokens, 0).unsqueeze(1).unsqueeze(1))
        for _ in range(count):
            x = blocks.encoder_layer(x, mask, (wide, many, dropout), "gelu")
            self.checkpoints.append(x.name)
        hidden = layer_norm(fc(x, wide, num_flatten_dims=2, act="gelu"), begin_norm_axis=2)
        scores = fc(hidden, self.words, num_flatten_dims=2)
        each = softmax_with_cross_entropy(scores, asked.unsqueeze(2), ignore_index=NOT_ASKED)
        known = torch.ne(asked, NOT_ASKED).to(torch.float32)
        self.inputs = [tokens, asked]
        self.loss = (torch.sum(each) / torch.clamp(torch.sum(known), min=1.0)).reshape([1])

    def _embedded(self, tokens: Any, wide: int, longest: int) -> Any:
        words = embedding(
            tokens.unsqueeze(2), [self.words, wide], param_attr=ParamAttr("word_embedding")
        )
        places = embedding(
            _places(tokens).unsqueeze(2), [longest, wide], param_attr=ParamAttr("pos_embedding")
        )
        return layer_norm(words + places, begin_norm_axis=2)

    def get_train_dataloader(  # noqa: PLR0917
        self,
        data_dir: str,
        max_seq_len: int = 512,
        batch_size: int = 4096,
        in_tokens: bool = True,
        shuffle: bool = True,
        vocab_path: str | None = None,
    ) -> Loader:
        """Feeds from ``train.txt`` of a folder."""
        return self._loader(data_dir, "train", max_seq_len, batch_size, in_tokens, shuffle)

    def get_val_dataloader(
        self,
        data_dir: str,
        max_seq_len: int = 512,
        batch_size: int = 4096,
        in_tokens: bool = True,
    ) -> Loader:
        """Feeds from ``val.txt`` of a folder."""
        return self._loader(data_dir, "val", max_seq_len, batch_size, in_tokens, False)

    def load_digital_dataset_from_file(
        self,
        data_dir: str,
        vocab_path: str | None = None,
        batch_size: int = 4096,
        max_seq_len: int = 512,
        in_tokens: bool = True,
    ) -> Loader:
        """The same in words of an earlier FleetX."""
        return self._loader(data_dir, "train", max_seq_len, batch_size, in_tokens, True)

    def _loader(  # noqa: PLR0917
        self, folder: str, phase: str, length: int, size: int, in_tokens: bool, shuffle: bool
    ) -> Loader:
        return load_bert_dataset(
            folder,
            inputs=self.inputs,
            batch_size=size,
            lang=self.lang,
            phase=phase,
            max_seq_len=length,
            in_tokens=in_tokens,
            shuffle=shuffle,
            vocab_size=self.words,
        )


class BertLarge(BertBase):
    """24 layers of 1,024 features."""

    size = (24, 1024, 16)


Bert_base, Bert_large = BertBase, BertLarge


class BertHuge(BertBase):
    """48 layers of 1,024 features."""

    size = (48, 1024, 16)


class BertGiant(BertBase):
    """48 layers of 2,048 features."""

    size = (48, 2048, 32)


class Transformer(ModelBase):
    """The transformer for translation: 6 layers of 512 features on both sides."""

    def __init__(
        self,
        words: int = 37000,
        *,
        layers: int = 6,
        width: int = 512,
        heads: int = 8,
        dropout: float = 0.1,
        max_length: int = 257,
    ) -> None:
        super().__init__()
        source = declared("src_word", [None, None], "int64")
        target = declared("trg_word", [None, None], "int64")
        follows = declared("lbl_word", [None, None], "int64")
        sizes, made = (width, heads, dropout), (words, width, max_length)
        ends = _hides(torch.eq(source, 1).unsqueeze(1).unsqueeze(1))
        memory = self._embedded(source, "src", *made)
        for _ in range(layers):
            memory = blocks.encoder_layer(memory, ends, sizes, "relu")
            self.checkpoints.append(memory.name)
        places = _places(target)
        later = _hides(torch.lt(places.unsqueeze(2), places.unsqueeze(1)).unsqueeze(1))
        x = self._embedded(target, "trg", *made)
        for _ in range(layers):
            x = blocks.decoder_layer(x, memory, (later, ends), sizes)
            self.checkpoints.append(x.name)
        scores = fc(x, words, num_flatten_dims=2)
        each = softmax_with_cross_entropy(scores, follows.unsqueeze(2), ignore_index=NOT_ASKED)
        known = torch.ne(follows, NOT_ASKED).to(torch.float32)
        self.inputs = [source, target, follows]
        self.loss = (torch.sum(each) / torch.clamp(torch.sum(known), min=1.0)).reshape([1])

    @staticmethod
    def _embedded(tokens: Any, side: str, words: int, width: int, longest: int) -> Any:
        found = embedding(
            tokens.unsqueeze(2), [words, width], param_attr=ParamAttr(f"{side}_word_emb_table")
        )
        places = embedding(
            _places(tokens).unsqueeze(2),
            [longest, width],
            param_attr=ParamAttr(f"{side}_pos_enc_table"),
        )
        return found * width**0.5 + places

    def load_wmt16_dataset_from_file(
        self,
        src_vocab_fpath: str,
        trg_vocab_fpath: str,
        train_file_pattern: Any,
        batch_size: int = 2048,
        shuffle: bool = True,
    ) -> Loader:
        """Feeds from text files and two vocabularies."""
        return transformer_data_generator(
            src_vocab_fpath, trg_vocab_fpath, train_file_pattern, self.inputs, batch_size, shuffle
        )

    def get_train_dataloader(
        self, local_path: str, batch_size: int = 2048, shuffle: bool = True
    ) -> Loader:
        """Feeds from the files of a folder: vocabularies ``vocab.*`` and pairs ``train*``."""
        folder = Path(local_path)
        words = sorted(folder.glob("vocab*"))
        if not words:
            raise FileNotFoundError(f"{str(local_path)!r} has no vocab* file; put one there.")
        pattern = str(folder / "train*")
        return self.load_wmt16_dataset_from_file(
            str(words[0]), str(words[-1]), pattern, batch_size, shuffle
        )


class MultiSlotCTR(ModelBase):
    """Clicks from 13 numbers and 26 words, as Criteo has them."""

    def __init__(self, sparse_feature_dim: int = 1000001, embedding_size: int = 10) -> None:
        super().__init__()
        self.sparse_feature_dim = sparse_feature_dim
        dense = declared("dense_input", [None, DENSE], "float32")
        sparse = [declared(f"C{at}", [None, 1], "int64") for at in range(1, SPARSE + 1)]
        label = declared("label", [None, 1], "int64")
        shared = ParamAttr(name="SparseFeatFactors")
        sizes = [sparse_feature_dim, embedding_size]
        rows = [embedding(ids, sizes, is_sparse=True, param_attr=shared) for ids in sparse]
        x = torch.cat([*(row.reshape([-1, embedding_size]) for row in rows), dense], 1)
        for _ in range(3):
            x = fc(x, 400, act="relu")
        chances = fc(x, 2, act="softmax")
        self.inputs = [dense, *sparse, label]
        self.loss = mean(cross_entropy(chances, label))
        self.target = {"acc": accuracy(chances, label)}

    def load_criteo_from_file(
        self,
        train_files_path: str,
        sparse_feature_dim: int | None = None,
        batch_size: int = 1000,
        shuffle: bool = True,
    ) -> Loader:
        """Feeds from the files of a folder."""
        dim = min(sparse_feature_dim or self.sparse_feature_dim, self.sparse_feature_dim)
        return get_dataloader(self.inputs, train_files_path, dim, batch_size, shuffle)

    load_multislot_from_file = get_train_dataloader = load_criteo_from_file


class Word2vec(ModelBase):
    """Words by those near them, against a few that are not."""

    def __init__(self, words: int = 354051, width: int = 300, nce_num: int = 5) -> None:
        super().__init__()
        self.nce_num = nce_num
        word = declared("input_word", [None, 1], "int64")
        near = declared("true_label", [None, 1], "int64")
        others = declared("neg_label", [None, nce_num], "int64")
        one = embedding(word, [words, width], is_sparse=True, param_attr=ParamAttr("emb"))
        right = embedding(near, [words, width], is_sparse=True, param_attr=ParamAttr("emb_w"))
        wrong = embedding(
            others.unsqueeze(2), [words, width], is_sparse=True, param_attr=ParamAttr("emb_w")
        )
        query = one.reshape([-1, 1, width])
        yes = torch.sum(query * right.reshape([-1, 1, width]), 2)
        no = torch.sum(query * wrong, 2)
        losses = [
            sigmoid_cross_entropy_with_logits(yes, torch.ones_like(yes)),
            sigmoid_cross_entropy_with_logits(no, torch.zeros_like(no)),
        ]
        self.inputs = [word, near, others]
        self.loss = mean(torch.sum(torch.cat(losses, 1), 1))

    def load_reader_from_file(
        self, dict_path: str, file_list: Any, batch_size: int = 100, shuffle: bool = True
    ) -> Loader:
        """Feeds from text files."""
        return load_w2v_reader(self.inputs, file_list, dict_path, self.nce_num, batch_size, shuffle)

    def load_dataset_from_file(
        self, dict_path: str, file_list: Any, batch_size: int = 100
    ) -> Loader:
        """The same."""
        return load_w2v_dataset(self.inputs, file_list, dict_path, self.nce_num, batch_size)
