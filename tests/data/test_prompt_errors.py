"""Mistakes in prompts are told when they are opened: what is wrong, where, and the nearest fix."""

import sys

import pytest

from prompt_files import ROWS, fails, texts, write
from sage_grpo.data.prompts import PromptError, open_prompts


def test_a_missing_file(tmp_path):
    write(tmp_path / "train_prompts.txt", ROWS)
    (tmp_path / "train_prompts.md").touch()
    fails(tmp_path / "train_promts.txt", "train_promts.txt: no such file", "did you mean train_prompts.txt?")
    fails(tmp_path / "zzz.csv", "zzz.csv: no such file", "did you mean train_prompts.txt?")
    fails(tmp_path, f"{tmp_path}: a folder, not a file", "did you mean train_prompts.txt?")
    fails(tmp_path / "none" / "p.txt", "no such file", f"nor any .txt, .jsonl, .csv, .parquet in {tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("name", "hint"), [("p.json", "did you mean .jsonl?"), ("p.xml", "datasets.Dataset"), ("p", "''")]
)
def test_an_unknown_extension(tmp_path, name, hint):
    (tmp_path / name).write_text("x")
    fails(tmp_path / name, f"{name}: unknown extension", "needs .txt, .jsonl, .csv, .parquet", hint)


def test_an_extension_in_capitals(tmp_path):
    (tmp_path / "P.TXT").write_text("x")
    assert texts(open_prompts(tmp_path / "P.TXT")(0, 1)) == ["x"]


@pytest.mark.parametrize(
    ("suffix", "content"), [(".txt", ""), (".txt", "\n \r\n"), (".jsonl", "\n"), (".csv", ""), (".csv", "prompt\n\n")]
)
def test_an_empty_file(tmp_path, suffix, content):
    path = tmp_path / f"p{suffix}"
    path.write_text(content)
    fails(path, f"{path}: empty; needs at least one prompt")


BROKEN = {
    "json": (
        ".jsonl",
        b'{"prompt": "a"}\n\n{"prompt": "b",}\n',
        "line 3: Expecting property name",
        ": column 16 (char 15)",
        "needs one JSON object a line",
    ),
    "json list": (".jsonl", b'["a"]', "line 1: list in place of an object", '{"prompt": "a cat"}'),
    "json null": (".jsonl", b'{"prompt": "a"}\nnull', "line 2: NoneType in place of an object"),
    "json deep": (".jsonl", b'{"prompt": ' + b"[" * 100_000, "line 1: ", "recursion", "needs one JSON object"),
    "json column": (
        ".jsonl",
        b'{"prompt": "a"}\n{"promt": 1, "n": 2}',
        "line 2: no column 'prompt'",
        "found 'promt', 'n'",
        "did you mean column='promt'?",
    ),
    "json no column": (".jsonl", b"{}", "line 1: no column 'prompt'; found none", "pass column="),
    "json number": (".jsonl", b'{"prompt": "a"}\n{"prompt": 5}', "line 2: 'prompt' is int, needs a string; quote it"),
    "json missing": (".jsonl", b'{"prompt": null}', "line 1: 'prompt' is NoneType, needs a string"),
    "json empty": (".jsonl", b'{"prompt": "a"}\n{"prompt": " "}', "line 2: 'prompt' is empty", "remove the record"),
    "json surrogate": (".jsonl", b'{"prompt": "\\ud83d"}', "line 1: 'prompt' has half a \\u surrogate pair"),
    "json bytes": (".jsonl", b'{"prompt": "a"}\n{"prompt": "\xe9"}', "line 2, byte 13: not UTF-8; save"),
    "txt bytes": (".txt", b"a\n\nb\nc\xff\n", "line 4, byte 2: not UTF-8; save the file as UTF-8"),
    "txt utf-16": (".txt", "a\n".encode("utf-16"), "line 1, byte 1: not UTF-8"),
    "csv bytes": (".csv", b'prompt\n"a\nb\xff"\n', "line 3, byte 2: not UTF-8"),
    "csv column": (".csv", b"\nPrompt,n\na,1", "line 2: no column 'prompt'", "found 'Prompt', 'n'", "column='Prompt'?"),
    "csv far column": (".csv", b"xyz,n\na,1", "found 'xyz', 'n'", "rename one to 'prompt' or pass column="),
    "csv twice": (".csv", b"prompt,n,n\na,1,2", "line 1: a column name is there twice in prompt, n, n; rename one"),
    "csv comma": (".csv", b"prompt,n\na,1\na cat, and a dog,2", "line 3: 3 fields under a header of 2", "needs quotes"),
    "csv short": (".csv", b"n,prompt\n1,a\n\n2\n", "line 4: 1 fields under a header of 2"),
    "csv open quote": (".csv", b'prompt\na\n"b\nc\nd\n', "line 3: unexpected end of data", "quotes in it doubled"),
    "csv quote": (".csv", b'prompt\na\n"b" c\n', "line 3: ", "quotes in it doubled"),
    "csv empty": (".csv", b'n,prompt\n1,a\n2,""', "line 3: 'prompt' is empty"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line(tmp_path, case):
    suffix, content, *pieces = BROKEN[case]
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content)
    fails(path, f"{path}, line ", *pieces)


def test_a_fault_in_the_last_of_many_lines_is_found_at_opening(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' * 20_000 + '{"prompt": ""}\n')
    fails(path, "p.jsonl, line 20001: 'prompt' is empty")


def test_a_broken_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"

    def table(**columns):
        parquet.write_table(arrow.table(columns), path, row_group_size=300)
        return path

    fails(table(promt=["a"], n=[1]), "p.parquet: no column 'prompt'; found 'promt', 'n'", "column='promt'?")
    fails(table(prompt=["a"] * 700 + [" "]), "p.parquet, row 701: 'prompt' is empty")
    fails(table(prompt=["a", None]), "p.parquet, row 2: 'prompt' is NoneType")
    fails(table(prompt=[1]), "p.parquet, row 1: 'prompt' is int, needs a string")
    fails(table(prompt=arrow.array([], arrow.string())), "p.parquet: empty")
    bad = arrow.array([b"a", b"\xff"]).view(arrow.string())
    fails(table(prompt=bad), "p.parquet, after row 0: broken parquet", "UTF8", "write it again")
    fails(table(prompt=["a", "b"], note=bad), "p.parquet, after row 0: broken parquet", "UTF8")
    path.write_bytes(b"not parquet")
    fails(path, "p.parquet, after row 0: broken parquet")


@pytest.mark.parametrize("missing", ["pyarrow", "pyarrow.parquet"])
def test_parquet_without_pyarrow(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "p.parquet").write_bytes(b"x")
    with pytest.raises(PromptError) as caught:
        open_prompts(tmp_path / "p.parquet")
    assert str(caught.value) == "reading .parquet needs pyarrow: pip install 'sage-grpo[parquet]'"


@pytest.mark.parametrize(
    ("source", "piece"),
    [
        ([], "list: empty; needs at least one prompt"),
        (iter(["a"]), "list_iterator has no rows by number; pass a file, a dataset or list(...) of it"),
        (None, "NoneType has no rows by number"),
        ({"train": ["a"]}, "dict has no rows by number; pass one split"),
        (["a", 5], "row 1: int in place of a string or a dict with 'prompt'"),
        (["a", ""], "row 1: 'prompt' is empty"),
        ([{"prompt": "a"}, {"text": "b"}], "row 1: no column 'prompt'; found 'text'"),
        ([{"prompt": None}], "row 0: 'prompt' is NoneType, needs a string"),
        (["\ud800"], "row 0: 'prompt' has half a \\u surrogate pair"),
    ],
)
def test_objects_that_are_no_prompts(source, piece):
    fails(source, piece)
