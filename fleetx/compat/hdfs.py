"""Files that ``hadoop fs`` reaches, with the calls of both generations of clients."""

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path


class ExecuteError(Exception):
    """A command of hadoop failed."""


class FSFileExistsError(Exception):
    """A file is there already."""


class FSFileNotExistsError(Exception):
    """A file is not there."""


class HDFSClient:
    """Runs ``hadoop fs`` with a configuration."""

    def __init__(
        self,
        hadoop_home: str,
        configs: Mapping[str, str] | None = None,
        time_out: int = 5 * 60 * 1000,
        sleep_inter: int = 1000,
    ) -> None:
        settings = [f"-D{key}={value}" for key, value in (configs or {}).items()]
        self._command = [str(Path(hadoop_home) / "bin" / "hadoop"), "fs", *settings]
        self._patience, self._pause = time_out / 1000, sleep_inter / 1000

    def _run(self, *args: str, retry_times: int | None = None) -> str:
        """The output of one command, tried again until the time is over."""
        end, tries = time.monotonic() + self._patience, 0
        while True:
            done = subprocess.run(
                [*self._command, *args], capture_output=True, text=True, check=False
            )
            tries += 1
            if done.returncode == 0:
                return done.stdout
            if (retry_times is not None and tries >= retry_times) or time.monotonic() > end:
                text = done.stderr.strip()
                raise ExecuteError(f"{' '.join([*self._command, *args])}: {text}")
            time.sleep(self._pause)

    def _is(self, flag: str, path: str) -> bool:
        command = [*self._command, "-test", flag, path]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def is_exist(self, fs_path: str) -> bool:
        """Whether there is such a path."""
        return self._is("-e", fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Whether it is a folder."""
        return self._is("-d", fs_path)

    def is_file(self, fs_path: str) -> bool:
        """Whether it is a file."""
        return self.is_exist(fs_path) and not self.is_dir(fs_path)

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Names of folders and of files; none of either where there is no such folder."""
        if not self.is_exist(fs_path):
            return [], []
        lines = [line.split(maxsplit=7) for line in self._run("-ls", fs_path).splitlines()]
        rows = [row for row in lines if len(row) == 8]
        dirs = [Path(row[7]).name for row in rows if row[0].startswith("d")]
        return dirs, [Path(row[7]).name for row in rows if not row[0].startswith("d")]

    def ls(self, hdfs_path: str) -> list[str]:
        """Full paths of what a folder has, as the client of Paddle 1 gave them."""
        dirs, files = self.ls_dir(hdfs_path)
        return [f"{hdfs_path.rstrip('/')}/{name}" for name in [*dirs, *files]]

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """Full paths of all files below a folder."""
        lines = [line.split(maxsplit=7) for line in self._run("-ls", "-R", hdfs_path).splitlines()]
        rows = [row for row in lines if len(row) == 8]
        found = [row[7] for row in rows if not (only_file and row[0].startswith("d"))]
        return sorted(found) if sort else found

    def list_dirs(self, fs_path: str) -> list[str]:
        """Names of folders."""
        return self.ls_dir(fs_path)[0]

    def mkdirs(self, fs_path: str) -> None:
        """Make a folder, and those above it."""
        self._run("-mkdir", "-p", fs_path)

    def makedirs(self, hdfs_path: str) -> bool:
        """The same, by its name in Paddle 1."""
        self.mkdirs(hdfs_path)
        return True

    def delete(self, fs_path: str) -> bool:
        """Remove a file or a folder, if it is there."""
        if self.is_exist(fs_path):
            self._run("-rm", "-r", "-f", fs_path)
        return True

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Make an empty file."""
        if self.is_exist(fs_path):
            if not exist_ok:
                raise FSFileExistsError(fs_path)
            return
        self._run("-touchz", fs_path)

    def mv(
        self,
        fs_src_path: str,
        fs_dst_path: str,
        overwrite: bool = False,
        test_exists: bool = True,
    ) -> None:
        """Move a file or a folder."""
        if overwrite:
            self.delete(fs_dst_path)
        if test_exists and not self.is_exist(fs_src_path):
            raise FSFileNotExistsError(fs_src_path)
        if test_exists and self.is_exist(fs_dst_path):
            raise FSFileExistsError(fs_dst_path)
        self._run("-mv", fs_src_path, fs_dst_path)

    rename = mv

    def cat(self, fs_path: str) -> str:
        """The text of a file."""
        return self._run("-cat", fs_path).rstrip("\n") if self.is_file(fs_path) else ""

    def upload(  # noqa: PLR0917 (the order of Paddle)
        self,
        hdfs_path: str = "",
        local_path: str = "",
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int | None = None,
        fs_path: str = "",
    ) -> bool:
        """Copy a local file or folder there.

        Paddle 2 names the local one first, ``upload(local_path, fs_path)``: a path that exists
        here is the local one.
        """
        there = fs_path or hdfs_path
        if Path(there).exists() and not Path(local_path).exists():
            local_path, there = there, local_path
        if not Path(local_path).exists():
            raise FSFileNotExistsError(f"{local_path} is not there")
        if overwrite:
            self.delete(there)
        self._run("-put", local_path, there, retry_times=retry_times)
        return True

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int | None = None,
    ) -> bool:
        """Copy a file or a folder of there to here."""
        if not self.is_exist(hdfs_path):
            raise FSFileNotExistsError(f"{hdfs_path} is not there")
        Path(local_path).parent.mkdir(parents=True, exist_ok=True)
        self._run("-get", "-f", hdfs_path, local_path, retry_times=retry_times)
        return True

    def need_upload_download(self) -> bool:
        """Files are somewhere else."""
        return True


class LocalFS:
    """The same calls for files of this machine."""

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Names of folders and of files."""
        if not self.is_exist(fs_path):
            return [], []
        found = sorted(Path(fs_path).iterdir())
        return [p.name for p in found if p.is_dir()], [p.name for p in found if not p.is_dir()]

    def list_dirs(self, fs_path: str) -> list[str]:
        """Names of folders."""
        return self.ls_dir(fs_path)[0]

    def mkdirs(self, fs_path: str) -> None:
        """Make a folder, and those above it."""
        if Path(fs_path).is_file():
            raise AssertionError(f"{fs_path} is already a file")
        Path(fs_path).mkdir(parents=True, exist_ok=True)

    def is_file(self, fs_path: str) -> bool:
        """Whether it is a file."""
        return Path(fs_path).is_file()

    def is_dir(self, fs_path: str) -> bool:
        """Whether it is a folder."""
        return Path(fs_path).is_dir()

    def is_exist(self, fs_path: str) -> bool:
        """Whether there is such a path."""
        return Path(fs_path).exists()

    def delete(self, fs_path: str) -> None:
        """Remove a file or a folder, if it is there."""
        if self.is_dir(fs_path):
            shutil.rmtree(fs_path)
        else:
            Path(fs_path).unlink(missing_ok=True)

    def rename(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Move a file or a folder."""
        Path(fs_src_path).rename(fs_dst_path)

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Make an empty file."""
        if self.is_exist(fs_path) and not exist_ok:
            raise FSFileExistsError(fs_path)
        Path(fs_path).touch()

    def mv(
        self, src_path: str, dst_path: str, overwrite: bool = False, test_exists: bool = False
    ) -> None:
        """Move a file or a folder."""
        if not self.is_exist(src_path):
            raise FSFileNotExistsError(src_path)
        if overwrite:
            self.delete(dst_path)
        if self.is_exist(dst_path):
            raise FSFileExistsError(dst_path)
        self.rename(src_path, dst_path)

    def need_upload_download(self) -> bool:
        """Files are here."""
        return False


def multi_download(  # noqa: PLR0917 (the order of Paddle)
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    trainer_id: int,
    trainers: int,
    multi_processes: int = 5,
) -> list[str]:
    """Copy this worker's share of the files of a folder here; returns their paths."""
    own = client.lsr(hdfs_path)[trainer_id::trainers]
    made: list[str] = []
    for file in own:
        target = str(Path(local_path) / file.removeprefix(hdfs_path).lstrip("/"))
        client.download(file, target)
        made.append(target)
    return made


def multi_upload(  # noqa: PLR0917 (the order of Paddle)
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """Copy all files of a local folder there."""
    for file in sorted(p for p in Path(local_path).rglob("*") if p.is_file()):
        target = f"{hdfs_path.rstrip('/')}/{file.relative_to(local_path)}"
        client.makedirs(str(Path(target).parent))
        client.upload(target, str(file), overwrite=overwrite)
