"""Storage of checkpoints: in a local folder, or at a URL that fsspec knows (`s3://bucket/run`, `gs://…`)."""

import hashlib
import os
import re
import shutil
from pathlib import Path

import fsspec
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from sage_grpo.distributed.checkpoint_index import IndexedReader, IndexedWriter
from sage_grpo.errors import UserError
from sage_grpo.runs.folder import STEP

BLOCK = 1 << 20
PART = ".part"  # ends the name of a local folder that is not whole yet


class RemoteWriter(IndexedWriter, FsspecWriter):
    pass


class RemoteReader(IndexedReader, FsspecReader):
    pass


class StorageError(UserError, RuntimeError):
    """Raised when the place for checkpoints cannot be used."""


class Storage:
    """Access to the files of checkpoints in the folder or at the URL `root`. Names of files are relative to `root`.

    A checkpoint in a local folder counts once it is complete and has been renamed. At a URL, a checkpoint counts once
    its last file, the manifest, is written.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = str(root).rstrip("/")
        self.local = "://" not in self.root
        try:
            self.fs, self.base = fsspec.url_to_fs(self.root)
        except (ImportError, ValueError, OSError) as error:
            package = re.search(r"[Ii]nstall (\w+)", str(error))
            known = "is its server up?" if isinstance(error, OSError) else "use a folder, or s3://bucket/folder"
            fix = f"pip install {package.group(1)}" if package else known
            raise StorageError(f"run.checkpoints={self.root}: {error}; {fix}") from error

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}"

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def steps(self) -> list[str]:
        """Return the names of the checkpoints, such as `step-00000010`, in the order of iterations."""
        self.fs.invalidate_cache()
        paths = self.fs.ls(self.base, detail=False) if self.fs.isdir(self.base) else []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in paths)
        return sorted(name for name in names if name.startswith(STEP))

    def read(self, name: str) -> bytes:
        data: bytes = self.fs.cat_file(self._path(name))
        return data

    def write(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(self._path(name), data)
        self.sync(name)

    def names(self, folder: str, start: str) -> list[str]:
        """Return the paths, relative to `root`, of the files directly in `folder` whose names begin with `start`."""
        self.fs.invalidate_cache()
        files = (path.rsplit("/", 1)[-1] for path in self.fs.ls(self._path(folder), detail=False))
        return sorted(f"{folder}/{name}" for name in files if name.startswith(start))

    def digest(self, name: str) -> str:
        total = hashlib.sha256()
        with self.fs.open(self._path(name), "rb") as file:
            while block := file.read(BLOCK):
                total.update(block)
        return total.hexdigest()

    def remove(self, name: str) -> None:
        if self.fs.exists(self._path(name)):
            self.fs.rm(self._path(name), recursive=True)

    def begin(self, step: str) -> str:
        """Make the folder to which the checkpoint `step` is written, and return the name of this folder.

        Unfinished folders of other checkpoints are removed. Only one process writes at a time, so a kill left them.
        """
        work = f".{step}{PART}" if self.local else step
        for left in {*self._parts(), work}:
            self.remove(left)
        self.fs.makedirs(self._path(work), exist_ok=True)
        return work

    def _parts(self) -> list[str]:
        names = os.listdir(self.base) if self.local and os.path.isdir(self.base) else []
        return [name for name in names if name.startswith(f".{STEP}") and name.endswith(PART)]

    def publish(self, work: str, step: str) -> None:
        """Rename the finished local folder `work` to `step`, its final name. At a URL there is nothing to rename."""
        if self.local:
            self.remove(step)
            os.rename(self._path(work), self._path(step))
            self.sync("")

    def full(self) -> bool:
        return self.local and shutil.disk_usage(self.base).free < BLOCK

    def sync(self, name: str) -> None:
        """Flush a local file or folder to the disk itself, so that a power cut cannot lose it. At a URL, do nothing."""
        if self.local:
            handle = os.open(self._path(name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def writer(self, name: str) -> IndexedWriter:
        writer = IndexedWriter(self._path(name)) if self.local else RemoteWriter(self.url(name))
        writer.files, writer.folder = self, name
        return writer

    def reader(self, name: str) -> IndexedReader:
        reader = IndexedReader(self._path(name)) if self.local else RemoteReader(self.url(name))
        reader.files, reader.folder = self, name
        return reader
