"""``fleetx.utils.Downloader``: the data set of a small YAML file, once on every machine."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fleetx.data.downloads.checked_files import Listed, fetch, listed, unpack
from fleetx.data.downloads.marks import Marks
from fleetx.data.downloads.sources import Source, SourceError, source_of
from fleetx.data.locks import only_one
from fleetx.data.requirements import require
from fleetx.roles import identity, started
from fleetx.roles.worker_util import util

logger = logging.getLogger(__name__)

LIST = "filelist.txt"
KEY = "bos_path"
LOCK = ".download.lock"


class Downloader:
    """Brings the files of a data set to this machine, checked against their sums.

    Args:
        mirror: a folder or an address that is asked first; the files lie there under their names.
    """

    def __init__(self, mirror: str | Path | None = None) -> None:
        self._mirror = source_of(str(mirror)) if mirror is not None else None

    def download_from_bos(
        self,
        fs_yaml: str | Path | None = None,
        local_path: str | Path = "./",
        shard_num: int = -1,
        shard_id: int = -1,
        process_num: int = 10,
    ) -> str:
        """Download what is missing or differs, and unpack archives; returns ``local_path``.

        Every worker may call it: one of each machine downloads, the others wait for it. A download
        that was interrupted goes on where it stopped.

        Args:
            fs_yaml: a YAML file, or its address, with the key ``bos_path``: the folder of
                ``filelist.txt`` (lines of 'name md5').
            local_path: where to.
            shard_num: into how many parts the files are dealt; -1: each machine gets all. Where
                they are dealt, all workers of a job must call it; they go on when all parts are
                there.
            shard_id: which part this is.
            process_num: downloads at a time.
        """
        if shard_num <= 0:
            self._bring(fs_yaml, Path(local_path), slice(None), process_num)
            return str(local_path)
        problem = None
        try:
            _check_shard(shard_num, shard_id)
            part = slice(shard_id, None, shard_num)
            self._bring(fs_yaml, Path(local_path), part, process_num)
        except Exception as error:
            problem = error
        _meet(problem)
        return str(local_path)

    def _bring(
        self, fs_yaml: str | Path | None, folder: Path, part: slice, process_num: int
    ) -> None:
        origin = source_of(_described(fs_yaml))
        files = listed(origin.text(LIST), f"{origin}/{LIST}")[part]
        marks = Marks(folder)
        if not marks.missing(files):
            return
        with only_one(folder / LOCK):
            unsure = marks.missing(files)  # another worker may have been here meanwhile
            missing = [file for file in unsure if not file.is_in(folder)]
            if missing:
                sources = [origin] if self._mirror is None else [self._mirror, origin]
                _fetch_all(missing, sources, folder, process_num)
            for file in unsure:
                unpack(file, folder)
            if unsure:
                marks.add(unsure)


def _meet(problem: Exception | None) -> None:
    """Wait for the workers that bring the other parts; where one failed, all do."""
    found = []
    if started() and identity().is_worker and identity().worker_num > 1:
        found = util.all_gather("" if problem is None else str(problem) or repr(problem))
    if problem is not None:
        raise problem
    for worker, text in enumerate(found):
        if text:
            raise SourceError(f"worker {worker} could not bring its part of the files: {text}")


def _fetch_all(
    files: Sequence[Listed], sources: Sequence[Source], folder: Path, at_once: int
) -> None:
    """All of them, or none that is half done under its own name."""
    bar = tqdm(unit="B", unit_scale=True, desc="download", leave=False)
    with bar, ThreadPoolExecutor(max(1, at_once)) as pool:
        jobs = [pool.submit(fetch, file, sources, folder, bar) for file in files]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    logger.info("downloaded %d files to %s", len(files), folder)


def _described(fs_yaml: str | Path | None) -> str:
    """Where the data set lies."""
    require("yaml", "reading where a data set lies")
    import yaml

    if fs_yaml is None or not str(fs_yaml).endswith((".yaml", ".yml")):
        raise ValueError(
            f"download_from_bos(fs_yaml={fs_yaml!r}) needs a .yaml or .yml file, or its address, "
            f"with the key {KEY}."
        )
    place, slash, name = str(fs_yaml).rpartition("/")
    try:
        found: Any = yaml.safe_load(source_of(place + slash or ".").text(name))
    except yaml.YAMLError as error:
        raise ValueError(f"{str(fs_yaml)!r} is no YAML: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get(KEY), str):
        keys = ", ".join(map(str, found)) if isinstance(found, dict) else "none"
        raise ValueError(
            f"{str(fs_yaml)!r} has no key {KEY} (it has: {keys}); write '{KEY}: ' and the folder "
            f"or address of {LIST}."
        )
    return str(found[KEY])


def _check_shard(shard_num: int, shard_id: int) -> None:
    if shard_num > 0 and not 0 <= shard_id < shard_num:
        raise ValueError(
            f"shard_id={shard_id} is no part of {shard_num}; set it from 0 to {shard_num - 1}."
        )
