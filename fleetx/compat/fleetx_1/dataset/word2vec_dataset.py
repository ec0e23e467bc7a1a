"""``fleetx.dataset.word2vec_dataset``."""

from collections.abc import Sequence
from typing import Any

from fleetx.compat.fleetx_1.dataset.feeding import Loader
from fleetx.compat.fleetx_1.dataset.word2vec_reader import load_w2v_reader


def load_w2v_dataset(
    inputs: Sequence[Any], file_list: Any, dict_path: str, nce_num: int, batch_size: int
) -> Loader:
    """The same samples as ``load_w2v_reader`` gives."""
    return load_w2v_reader(inputs, file_list, dict_path, nce_num, batch_size)
