"""Prompt files in every format, for the tests that read them."""

import csv
import json
import sys
from hashlib import blake2b

import pytest

from sage_grpo.data.prompts import PromptError, open_prompts

ROWS = [{"prompt": f"a cat, {i} «mice» and a 犬", "style": f"style {i % 3}"} for i in range(23)]
SUFFIXES = [".txt", ".jsonl", ".csv", ".parquet"]


def write(path, rows, newline="\n"):
    if path.suffix == ".txt":
        path.write_bytes("".join(row["prompt"] + newline for row in rows).encode())
    elif path.suffix == ".jsonl":
        path.write_bytes("".join(json.dumps(row) + newline for row in rows).encode())
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator=newline)
            writer.writeheader()
            writer.writerows(rows)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        table = sys.modules["pyarrow"].Table.from_pylist(rows)
        parquet.write_table(table, path, row_group_size=7)
    return path


def texts(prompts):
    return [prompt.text for prompt in prompts]


def key(*parts):
    return blake2b(repr(parts).encode(), digest_size=32).digest()


def fails(source, *pieces, **options):
    with pytest.raises(PromptError) as caught:
        open_prompts(source, **options)
    for piece in pieces:
        assert piece in str(caught.value), str(caught.value)
