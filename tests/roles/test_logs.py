"""Log lines reach stderr unless the script has set up logging itself."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleetx.roles import Identity, logs


@contextmanager
def bare_root() -> Iterator[None]:
    """Take pytest's own handlers away for a moment; it puts them back around each phase."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = kept


def worker(index: int) -> Identity:
    return Identity(source="test", is_collective=True, index=index, worker_num=2)


@pytest.mark.parametrize(("index", "level"), [(0, logging.INFO), (1, logging.WARNING)])
def test_first_worker_tells_others_warn(
    index: int, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with bare_root():
        handler = logs.attach(worker(index))
        logging.getLogger("fleetx.roles").info("told")
        logging.getLogger("fleetx.roles").warning("warned")
        logs.detach(handler)
    said = capsys.readouterr().err
    assert ("told" in said) == (level == logging.INFO)
    assert f"WARNING [worker {index}] warned" in said
    assert logging.getLogger("fleetx").handlers == []


@pytest.mark.parametrize("name", ["fleetx", ""])
def test_the_script_comes_first(name: str) -> None:
    logger, handler = logging.getLogger(name), logging.NullHandler()
    with bare_root():
        logger.addHandler(handler)
        assert logs.attach(worker(0)) is None
        logs.detach(None)
        assert logger.handlers == [handler]
        logger.removeHandler(handler)
