"""``paddle.reader``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.reader.decorator": (
            "cache map_readers buffered compose chain shuffle firstn xmap_readers "
            "multiprocess_reader ComposeNotAligned"
        ),
        "paddle.reader.creator": "np_array text_file",
    },
    modules=["decorator", "creator"],
)
