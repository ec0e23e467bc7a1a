"""What holds for the process of all tests."""

import gc


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every later search for garbage: it is most of the heap."""
    gc.collect()
    gc.freeze()
