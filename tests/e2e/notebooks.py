"""Run the notebooks of examples/ and write them back with what they show: `python -m e2e.notebooks`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def execute(path: Path, folder: Path, last: str = "") -> nbformat.NotebookNode:
    """In a process of its own that works in `folder`; `last` is a cell to add at the end."""
    book = nbformat.read(path, as_version=4)
    if last:
        book.cells.append(nbformat.v4.new_code_cell(last))
    place = {"metadata": {"path": str(folder)}}
    # times of cells would make each run another file
    return NotebookClient(book, timeout=300, record_timing=False, resources=place).execute()


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        book = execute(path, path.parent)
        path.write_text(nbformat.writes(book) + "\n")
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
