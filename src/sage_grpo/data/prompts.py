"""Prompts by position, from a file or a sequence: reshuffled each epoch, resumable anywhere, not held in memory."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b, file_digest, sha256
from importlib import import_module
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Protocol

import numpy as np

from sage_grpo.core.protocols import Prompt
from sage_grpo.errors import UserError
from sage_grpo.suggest import nearest

Row = dict[str, Any]
FEISTEL_ROUNDS = 8
FEISTEL_HALF = 4  # bits, at least: on halves of one or two bits some orders of five prompts come out more often


class PromptError(UserError, ValueError):
    """Raised when prompts cannot be read; the message says what is wrong, where, and how to fix it."""


class Rows(Protocol):
    """The rows of a prompt source, by index. Every format checks all rows when the object is made."""

    def __len__(self) -> int: ...
    def row(self, index: int) -> Row: ...


def permuted(index: int, size: int, key: bytes) -> int:
    """Return where a permutation of range(size), determined by `key`, sends `index`.

    The permutation is a Feistel network, which needs no table.
    """
    half = max(FEISTEL_HALF, (size - 1).bit_length() + 1 >> 1)
    while True:
        left, right = index >> half, index & (1 << half) - 1
        for turn in range(FEISTEL_ROUNDS):
            digest = blake2b(b"%d %d" % (turn, right), key=key, digest_size=8).digest()
            left, right = right, left ^ int.from_bytes(digest, "little") & (1 << half) - 1
        index = left << half | right
        if index < size:  # the network permutes 4**half places: outside, walk on along the cycle
            return index


def check_columns(column: str, columns: Iterable[Any], where: str) -> None:
    names = [str(name) for name in columns]
    if len(set(names)) < len(names):
        raise PromptError(f"{where}: a column name is there twice in {', '.join(names)}; rename one")
    if column not in names:
        close = nearest(column, names)
        hint = f"did you mean column={close!r}?" if close else f"rename one to {column!r} or pass column="
        raise PromptError(f"{where}: no column {column!r}; found {', '.join(map(repr, names)) or 'none'}; {hint}")


def checked_text(row: Mapping[str, Any], column: str, where: str) -> str:
    if column not in row:
        check_columns(column, row, where)
    text = row[column]
    if not isinstance(text, str):
        raise PromptError(f"{where}: {column!r} is {type(text).__name__}, needs a string; quote it or pass column=")
    if not text.strip():
        raise PromptError(f"{where}: {column!r} is empty; write a prompt or remove the record")
    try:
        text.encode()  # JSON can spell half a surrogate pair, which no tokenizer takes
    except UnicodeEncodeError as error:
        raise PromptError(f"{where}: {column!r} has half a \\u surrogate pair; write the character") from error
    return text


def check_image(row: Mapping[str, Any], folder: Path, where: str) -> None:
    """Refuse a row whose image file is missing. The check runs when prompts are opened, not in the middle of a run."""
    image = row.get("image")
    if isinstance(image, str) and image and not (folder / image).is_file():
        raise PromptError(f"{where}: no image {image!r}; its path is relative to {folder}, URLs are not fetched")


class LineRows:
    """The rows of a text file, one prompt per line, and the base class of other formats with lines.

    A scan stores where each record starts in a temporary file, not in memory.
    """

    fix = ""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column, self.line = str(path), column, 0
        with path.open("rb") as file, TemporaryFile() as starts:
            self.offset = start = file.seek(3 if file.read(3) == b"\xef\xbb\xbf" else 0)  # a byte order mark is no text
            where = f"{path}, line 1"
            try:
                for row in self.parse(self.lines(file)):
                    if row is not None:
                        checked_text(row, column, where)
                        check_image(row, path.parent, where)
                        starts.write(start.to_bytes(8, "little"))
                    start, where = self.offset, f"{self.path}, line {self.line + 1}"
            except PromptError:
                raise
            except (ValueError, RecursionError, csv.Error) as error:
                raise PromptError(f"{where}: {str(error).replace('line 1 ', '')}; {self.fix}") from error
            starts.flush()
            self.starts = np.memmap(starts, "<i8", "r") if starts.tell() else np.empty(0)

    def lines(self, file: BinaryIO) -> Iterator[str]:
        for self.line, line in enumerate(file, 1):  # only \n ends a line; str.splitlines would also cut at U+2028
            self.offset += len(line)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                where = f"{self.path}, line {self.line}, byte {error.start + 1}"
                raise PromptError(f"{where}: not UTF-8; save the file as UTF-8") from error

    def parse(self, lines: Iterator[str]) -> Iterator[Row | None]:
        """Yield each record as a row, and None for a line without a record, without reading ahead.

        This class reads plain text, with one prompt per line.
        """
        for line in lines:
            yield {self.column: line.rstrip("\r\n")} if line.strip() else None

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> Row:
        with open(self.path, "rb") as file:  # opened each time: processes then share no position in the file
            file.seek(int(self.starts[index]))
            return next(self.parse(self.lines(file))) or {}


class JsonlRows(LineRows):
    fix = 'needs one JSON object a line, such as {"prompt": "a cat"}'

    def parse(self, lines: Iterator[str]) -> Iterator[Row | None]:
        for line in lines:
            row = json.loads(line) if line.strip() else None
            if line.strip() and not isinstance(row, dict):
                raise ValueError(f"{type(row).__name__} in place of an object")
            yield row


class CsvRows(LineRows):
    fix = "a field with commas, quotes or line breaks needs quotes around it, and quotes in it doubled"
    header: list[str] | None = None

    def parse(self, lines: Iterator[str]) -> Iterator[Row | None]:
        for fields in csv.reader(lines, strict=True):
            row = None
            if fields and self.header is None:
                check_columns(self.column, fields, f"{self.path}, line {self.line}")
                self.header = fields
            elif fields and self.header:
                if len(fields) != len(self.header):
                    raise ValueError(f"{len(fields)} fields under a header of {len(self.header)}")
                row = dict(zip(self.header, fields, strict=True))
            yield row


class ParquetRows:
    """The rows of a Parquet file, with one row group in memory at a time."""

    def __init__(self, path: Path, column: str) -> None:
        try:
            arrow, self.parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError as error:
            raise PromptError("reading .parquet needs pyarrow: pip install 'sage-grpo[parquet]'") from error
        self.path, self.group, self.table, count = path, -1, arrow.table({}), 0
        try:
            with self.parquet.ParquetFile(path) as file:
                meta = file.metadata
                self.ends = np.cumsum([0] + [meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
                check_columns(column, file.schema_arrow.names, str(path))
                for batch in file.iter_batches(256):
                    batch.validate(full=True)  # the strings of every column are UTF-8
                    columns = [name for name in (column, "image") if name in batch.schema.names]
                    for row in batch.select(columns).to_pylist():
                        count += 1
                        checked_text(row, column, f"{path}, row {count}")
                        check_image(row, path.parent, f"{path}, row {count}")
        except (arrow.ArrowException, OSError) as error:
            raise PromptError(f"{path}, after row {count}: broken parquet ({error}); write it again") from error

    def __len__(self) -> int:
        return int(self.ends[-1])

    def row(self, index: int) -> Row:
        group = int(np.searchsorted(self.ends, index, "right")) - 1
        if group != self.group:
            with self.parquet.ParquetFile(self.path) as file:
                self.group, self.table = group, file.read_row_group(group)
        row: Row = self.table.slice(index - int(self.ends[group]), 1).to_pylist()[0]
        return row


class ObjectRows:
    """The rows of a list or a dataset, which is read in place, not copied."""

    def __init__(self, source: Any, column: str) -> None:
        self.source, self.column, digest = source, column, sha256()
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise PromptError(
                f"{type(source).__name__} has no rows by number; pass a file, a dataset or list(...) of it"
            )
        for number, row in enumerate(self.scan()):
            text = checked_text(row, column, f"row {number}").encode()
            digest.update(b"%d:%s" % (len(text), text))  # texts only: the repr of an image has an address in it
        self.fingerprint = digest.hexdigest()

    def scan(self) -> Iterator[Row]:
        if hasattr(self.source, "select_columns"):  # a datasets.Dataset: no need to decode every image in it
            check_columns(self.column, self.source.column_names, "the dataset")
            for batch in self.source.select_columns([self.column]).iter(1000):
                yield from ({self.column: text} for text in batch[self.column])
        else:
            yield from map(self.row, range(len(self.source)))

    def __len__(self) -> int:
        return len(self.source)

    def row(self, index: int) -> Row:
        try:
            row = self.source[index]
        except (KeyError, TypeError) as error:  # a table by column, a dict of splits
            name = type(self.source).__name__
            raise PromptError(f"{name} has no rows by number; pass one split, or a list of strings or dicts") from error
        if not isinstance(row, str | Mapping):
            raise PromptError(f"row {index}: {type(row).__name__} in place of a string or a dict with {self.column!r}")
        return {self.column: row} if isinstance(row, str) else dict(row)


FORMATS: dict[str, Callable[[Path, str], Rows]] = {
    ".txt": LineRows,
    ".jsonl": JsonlRows,
    ".csv": CsvRows,
    ".parquet": ParquetRows,
}


def found_file(path: Path) -> Path:
    if not path.is_file():
        folder = path if path.is_dir() else path.parent
        names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in FORMATS) if folder.is_dir() else []
        near = nearest(path.name, names) or " or ".join(names[:3])
        hint = f"did you mean {near}?" if near else f"nor any {', '.join(FORMATS)} in {folder}"
        raise PromptError(f"{path}: {'a folder, not a' if path.is_dir() else 'no such'} file; {hint}")
    if path.suffix.lower() not in FORMATS:
        close = nearest(path.suffix.lower(), FORMATS)
        hint = f"did you mean {close}?" if close else "convert it, or pass a list or a datasets.Dataset"
        raise PromptError(f"{path}: unknown extension {path.suffix!r}; needs {', '.join(FORMATS)}; {hint}")
    return path


def stamp_of(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


class Prompts:
    """A `PromptSource` of N rows: position p is in epoch p // N, at place p % N of that epoch's order."""

    def __init__(self, source: Any, seed: int, shuffle: bool, column: str) -> None:
        self.seed, self.shuffle, self.column = int(seed), shuffle, column  # int: the repr of np.int64(0) is another
        self.path = found_file(Path(source).expanduser().absolute()) if isinstance(source, str | PathLike) else None
        self.rows: Rows
        if self.path:
            self.stamp, self.fingerprint = stamp_of(self.path), digest_of(self.path)
            self.rows = FORMATS[self.path.suffix.lower()](self.path, column)
        else:
            self.rows = objects = ObjectRows(source, column)
            self.fingerprint = objects.fingerprint
        if not len(self.rows):
            raise PromptError(f"{self.path or type(source).__name__}: empty; needs at least one prompt")

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, start: int, count: int) -> list[Prompt]:
        if start < 0 or count < 0:
            raise PromptError(f"prompts({start}, {count}): positions and counts start at 0")
        if self.path and self.stamp != (stamp := stamp_of(self.path)):
            if digest_of(self.path) != self.fingerprint:  # offsets would cut the new content anywhere
                raise PromptError(f"{self.path}: changed since it was opened; put it back, or start again with it")
            self.stamp = stamp
        return [self._at(position) for position in range(start, start + count)]

    def _at(self, position: int) -> Prompt:
        epoch, index = divmod(position, len(self.rows))
        if self.shuffle:
            key = blake2b(repr((self.seed, epoch)).encode(), digest_size=32).digest()
            index = permuted(index, len(self.rows), key)
        row = self.rows.row(index)
        if self.path and isinstance(image := row.get("image"), str) and image:
            row["image"] = str(self.path.parent / image)
        return Prompt(str(row.pop(self.column)), row)


class PromptFunction:
    """A function of your own as a `PromptSource`.

    Its prompts are not known in advance, so a resumed run cannot check that they are unchanged.
    """

    fingerprint = None

    def __init__(self, function: Callable[[int, int], Sequence[Prompt]]) -> None:
        self.function = function

    def __call__(self, start: int, count: int) -> Sequence[Prompt]:
        return self.function(start, count)


def open_prompts(
    source: str | PathLike[str] | Any, *, seed: int = 0, shuffle: bool = True, column: str = "prompt"
) -> Prompts:
    """Return the prompts of a .txt, .jsonl, .csv or .parquet file, a dataset or a list. Every record is checked now.

    Args:
        source: A path, a `datasets.Dataset`, or a list of texts or dicts.
        seed: Determines the order of each epoch.
        shuffle: Whether each epoch has a random order of its own, instead of the order of the source.
        column: Name of the column with the texts, if the source has columns.

    Raises:
        PromptError: A record cannot be used; the message says which, why, and the nearest fix.
    """
    return Prompts(source, seed, shuffle, column)
