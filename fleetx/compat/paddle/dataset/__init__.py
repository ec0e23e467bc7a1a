"""``paddle.dataset``: from files of this machine, from a mirror, or drawn.

Files lie in ``~/.cache/paddle/dataset/<name>/``, where Paddle keeps them; what is not there is
fetched from the folder or address that ``FLEETX_DATASETS`` names. Where neither has them, a small
data set of the same form is drawn, which is said once.
"""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {},
    modules=[
        *("cifar", "common", "conll05", "flowers", "image", "imdb", "imikolov", "mnist"),
        *("movielens", "sentiment", "uci_housing", "wmt14", "wmt16"),
    ],
)
