"""Find the prompt of each video: in the prompt file, by the file name of the video, or in a .txt next to the video."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sage_grpo.core.protocols import Prompt
from sage_grpo.data.prompts import PromptError, open_prompts
from sage_grpo.rewards.frames import Unscorable

NAME_COLUMNS = ("file", "filename", "file_name", "video", "path", "name")
NUMBER_OF_SAMPLE = re.compile(r"-\d+$")  # `a cat-0.mp4`: videos named by their prompt
SPLIT = "\t"  # between name and prompt, on a line of plain text


class MissingPrompt(Unscorable):
    """Raised when a scorer reads the prompt of a video that has none."""


class NoPrompt(Prompt):
    """The placeholder for the prompt of a video that has none.

    A scorer that never reads the prompt can still score the video. Reading `text` or `columns` raises `MissingPrompt`.
    """

    def __init__(self) -> None:
        """Set no attribute, so that reading `text` or `columns` calls `__getattr__`."""

    def __getattr__(self, name: str) -> Any:
        if name in ("text", "columns"):
            raise MissingPrompt("there is no prompt for it")
        raise AttributeError(name)


def find_prompts(videos: Sequence[Path], root: Path, file: Path | None) -> list[Prompt]:
    """Return the prompt of each video, or `NoPrompt` for a video without a prompt.

    Args:
        videos: The video files.
        root: Folder of the videos. A row of the prompt file may name a video by its path in this folder, or by its file
            name with or without the ending.
        file: The prompt file; None if there is none. A video that no row of the file names has the prompt of the .txt
            next to it.

    Raises:
        PromptError: No row of the prompt file names any of the videos, or a .txt is not UTF-8.
    """
    rows = dict(_rows(file, videos, root)) if file else {}
    if file and not rows:
        example = _names(videos[0], root)[0]
        raise PromptError(
            f"{file}: no row is for one of the {len(videos)} videos, such as {example}; put the file's name into a "
            f"column {NAME_COLUMNS[0]!r}, or in .txt before a tab"
        )
    return [rows.get(path) or _beside(path) or NoPrompt() for path in videos]


def _rows(file: Path, videos: Sequence[Path], root: Path) -> Iterator[tuple[Path, Prompt]]:
    by_name: dict[str, list[Path]] = {}
    for path in videos:
        for name in _names(path, root):
            by_name.setdefault(name, []).append(path)
    source = open_prompts(file, shuffle=False)
    for i in range(len(source)):
        prompt = source(i, 1)[0]
        name = next((str(prompt.columns[c]) for c in NAME_COLUMNS if prompt.columns.get(c)), "")
        if not name and SPLIT in prompt.text:
            name, _, text = prompt.text.partition(SPLIT)
            prompt = Prompt(text.strip(), prompt.columns)
        keys = [prompt.text] if not name else [name.removeprefix("./"), Path(name).name, Path(name).stem]
        for path in next((by_name[key] for key in keys if key in by_name), []):
            yield path, prompt


def _names(path: Path, root: Path) -> list[str]:
    """Return the names by which a row of the prompt file may refer to this video."""
    inside = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return list(dict.fromkeys([inside, path.name, path.stem, NUMBER_OF_SAMPLE.sub("", path.stem)]))


def _beside(path: Path) -> Prompt | None:
    note = path.with_suffix(".txt")
    if not note.is_file():
        return None
    try:
        text = note.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise PromptError(f"{note}: not UTF-8; save the file as UTF-8") from error
    return Prompt(text) if text else None
