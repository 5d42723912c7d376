"""Prompts: the same from every format, once an epoch, by position, in bounded memory, and no error late at night."""

import os
import tracemalloc
from collections import Counter
from hashlib import sha256
from itertools import permutations

import pytest

pytest.importorskip("hypothesis")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from prompt_files import ROWS, SUFFIXES, fails, key, texts, write
from sage_grpo.core.protocols import PromptSource
from sage_grpo.data.prompts import PromptError, open_prompts, permuted

# -- the same prompts, whatever they are kept in


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_formats_give_the_same_prompts_in_the_same_order(tmp_path, suffix):
    path = write(tmp_path / f"p{suffix}", ROWS)
    plain = open_prompts(path, shuffle=False)(0, 23)
    assert texts(plain) == [row["prompt"] for row in ROWS]
    assert [dict(p.columns) for p in plain] == [{} if suffix == ".txt" else {"style": r["style"]} for r in ROWS]
    assert texts(open_prompts(str(path), seed=5)(3, 60)) == texts(open_prompts(ROWS, seed=5)(3, 60))


@pytest.mark.parametrize("wrap", [list, tuple, lambda rows: [r["prompt"] for r in rows]], ids=["dicts", "tuple", "str"])
def test_sequences(wrap):
    prompts = open_prompts(wrap(ROWS), shuffle=False)
    assert len(prompts) == 23
    assert texts(prompts(0, 23)) == [row["prompt"] for row in ROWS]


def test_a_dataset():
    dataset = pytest.importorskip("datasets").Dataset.from_list(ROWS)
    prompts = open_prompts(dataset, seed=1)
    assert prompts(4, 40) == open_prompts(ROWS, seed=1)(4, 40)
    assert prompts.fingerprint == open_prompts(ROWS).fingerprint
    fails(dataset, "the dataset: no column 'prompts'", "'prompt', 'style'", "column='prompt'?", column="prompts")
    fails(dataset.add_column("n", list(range(23))), "row 0: 'n' is int", column="n")


def test_a_dataset_is_checked_without_decoding_its_images():
    datasets = pytest.importorskip("datasets")

    class Wary(datasets.Dataset):
        def __getitem__(self, key):
            raise AssertionError("read a whole row")

    dataset = datasets.Dataset.from_list(ROWS)
    dataset.__class__ = Wary
    prompts = open_prompts(dataset)
    with pytest.raises(AssertionError):
        prompts(0, 1)


def test_the_column_has_any_name_and_the_rest_are_columns(tmp_path):
    rows = [{"caption": "a dog", "prompt": "not this", "n": 3, "tags": ["x", None]}]
    prompt = open_prompts(write(tmp_path / "p.jsonl", rows), column="caption")(0, 1)[0]
    assert prompt.text == "a dog"
    assert prompt.columns == {"prompt": "not this", "n": 3, "tags": ["x", None]}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(TEXT, st.text(max_size=8, alphabet='a,"\n\r é\u2028;')), min_size=1, max_size=12))
def test_any_text_survives_jsonl_and_csv(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    rows = [{"note": note, "prompt": text} for text, note in rows]
    for suffix in (".jsonl", ".csv"):
        path = write(folder / f"p{suffix}", rows, "\r\n")  # after \n, Python's writer leaves a lone \r unquoted
        prompts = open_prompts(path, shuffle=False)(0, len(rows))
        assert [{"note": p.columns["note"], "prompt": p.text} for p in prompts] == rows


def test_csv_fields_with_line_breaks_commas_and_quotes(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('n,prompt\n1,"two\nlines, and ""quotes"""\n\n2,"été\n\n犬"\n3,plain')
    prompts = open_prompts(path, shuffle=False)
    assert texts(prompts(0, 3)) == ['two\nlines, and "quotes"', "été\n\n犬", "plain"]
    assert prompts(2, 1)[0].columns == {"n": "3"}
    path.write_text('n,prompt\n1,"two\nlines"\n2,"a\nb"\n3, \n')
    fails(path, "p.csv, line 6: 'prompt' is empty")  # file lines, not records


@pytest.mark.parametrize("suffix", SUFFIXES[:3])
@pytest.mark.parametrize("change", ["crlf", "bom", "cut", "blank", "crlf blank"])
def test_line_ends_marks_and_blank_lines(tmp_path, suffix, change):
    newline = "\r\n" if "crlf" in change else "\n"
    path = write(tmp_path / f"p{suffix}", ROWS, newline)
    content = path.read_bytes()
    end = newline.encode()
    changes = {
        "crlf": content,
        "bom": b"\xef\xbb\xbf" + content,
        "cut": content.removesuffix(end),
        "blank": end + content.replace(end, end * 3),
        "crlf blank": end + content.replace(end, end * 3),
    }
    path.write_bytes(changes[change])
    assert open_prompts(path, seed=2)(0, 46) == open_prompts(write(tmp_path / f"q{suffix}", ROWS), seed=2)(0, 46)


def test_only_a_newline_ends_a_line(tmp_path):
    (tmp_path / "p.txt").write_bytes(" one\u2028still\rone\x0b\x85 \n  \t\ntwo".encode())
    assert texts(open_prompts(tmp_path / "p.txt", shuffle=False)(0, 2)) == [" one\u2028still\rone\x0b\x85 ", "two"]


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_a_relative_image_is_found_beside_its_file(tmp_path, monkeypatch, suffix):
    images = ["in/a.png", str(tmp_path / "b.png"), ""]
    (tmp_path / "in").mkdir()
    for image in images[:2]:
        (tmp_path / image).touch()
    path = write(tmp_path / f"p{suffix}", [{"prompt": "x", "image": image} for image in images])
    monkeypatch.chdir(tmp_path)
    prompts = open_prompts(path.name, shuffle=False)
    monkeypatch.chdir("/")
    expected = [str(tmp_path / "in" / "a.png"), *images[1:]]
    assert [p.columns["image"] for p in prompts(0, 3)] == expected
    assert open_prompts([{"prompt": "x", "image": "a.png"}])(0, 1)[0].columns == {"image": "a.png"}


@pytest.mark.parametrize("image", ["missing.png", "https://host/c.png"])
@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_a_missing_image_is_told_at_once(tmp_path, suffix, image):
    path = write(tmp_path / f"p{suffix}", [{"prompt": "x", "image": ""}, {"prompt": "y", "image": image}])
    with pytest.raises(PromptError, match=r"(line|row) [23]: no image .*URLs are not fetched"):
        open_prompts(path)


# -- order


@pytest.mark.slow
def test_permutation_is_a_bijection():
    for size in range(1, 501):
        assert sorted(permuted(i, size, key(size)) for i in range(size)) == list(range(size))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 10**12), places=st.sets(st.integers(0, 10**12), max_size=20), seed=st.integers())
def test_permutation_of_any_size_stays_inside_and_apart(size, places, seed):
    places = {place % size for place in places}
    images = {permuted(place, size, key(seed)) for place in places}
    assert len(images) == len(places)
    assert all(0 <= image < size for image in images)


@pytest.mark.slow
def test_all_orders_are_equally_likely():
    counts = Counter(tuple(permuted(i, 4, key(seed)) for i in range(4)) for seed in range(1000))
    assert chisquare([counts[order] for order in permutations(range(4))]).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("size", "bins"), [(10, 10), (1000, 20)])
@pytest.mark.parametrize("by", ["seed", "epoch"])
def test_the_place_of_the_first_prompt_is_uniform_over_seeds_and_epochs(size, bins, by):
    keys = [key(n, 0) if by == "seed" else key(0, n) for n in range(2000)]
    counts = np.bincount([permuted(0, size, k) * bins // size for k in keys], minlength=bins)
    assert chisquare(counts).pvalue > 1e-3


def test_neighbours_do_not_stay_together():
    order = np.array([permuted(i, 5000, key(0)) for i in range(5000)])
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(5000)  # five standard errors


def test_seeds_and_epochs_have_their_own_order():
    orders = {(s, e): tuple(texts(open_prompts(ROWS, seed=s)(23 * e, 23))) for s in range(5) for e in range(5)}
    assert len(set(orders.values())) == 25
    assert orders[3, 2] == tuple(texts(open_prompts(ROWS, seed=np.int64(3))(np.int64(46), 23)))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 40), takes=st.lists(st.integers(0, 17), max_size=30), shuffle=st.booleans())
def test_every_prompt_once_an_epoch_whatever_the_takes(size, takes, shuffle):
    prompts, seen = open_prompts([str(i) for i in range(size)], seed=7, shuffle=shuffle), []
    for take in takes:
        seen += texts(prompts(len(seen), take))
    for start in range(0, len(seen), size):
        epoch = seen[start : start + size]
        assert len(set(epoch)) == len(epoch)
        assert shuffle or epoch == [str(i) for i in range(len(epoch))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_resumes_at_any_position(tmp_path, suffix):
    path = write(tmp_path / f"p{suffix}", ROWS)
    whole = open_prompts(path, seed=9)(0, 100)
    assert len(set(texts(whole[:23]))) == 23
    for position in (0, 1, 22, 23, 24, 77):
        assert open_prompts(path, seed=9)(position, 100 - position) == whole[position:]


def test_is_a_prompt_source():
    source: PromptSource = open_prompts(["a"])
    assert texts(source(10**15, 2)) == ["a", "a"]
    for start, count in ((-1, 1), (0, -1)):
        with pytest.raises(PromptError, match="start at 0"):
            source(start, count)


# -- what a resumed run compares


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_fingerprint_is_the_files_content(tmp_path, suffix):
    path = write(tmp_path / f"p{suffix}", ROWS)
    prompts = open_prompts(path, seed=1)
    assert prompts.fingerprint == sha256(path.read_bytes()).hexdigest() == open_prompts(path, seed=2).fingerprint
    other = [*ROWS[:11], {**ROWS[11], "prompt": "another"}, *ROWS[12:]]
    write(path, other)
    assert open_prompts(path).fingerprint != prompts.fingerprint


def test_fingerprint_of_objects():
    prints = [open_prompts(rows).fingerprint for rows in (["a", "b", "c"], ["a", "x", "c"], ["a", "b"], ["ab", "c"])]
    assert len(set(prints)) == 4
    assert prints[0] == open_prompts([{"prompt": t, "image": object()} for t in "abc"]).fingerprint


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_changes_during_the_run_is_noticed(tmp_path, suffix):
    path = write(tmp_path / f"p{suffix}", ROWS)
    prompts = open_prompts(path)
    before = prompts(0, 5)
    os.utime(path, (1, 1))
    assert prompts(0, 5) == before  # touched, with the same content
    write(path, ROWS[1:])
    for _ in range(2):
        with pytest.raises(PromptError, match=r"p\.\w+: changed since it was opened; put it back"):
            prompts(0, 5)
    write(path, ROWS)
    assert prompts(0, 5) == before


# -- memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "record", "count"),
    [
        (".txt", "prompt {}\n", 300_000),
        (".jsonl", '{{"prompt": "prompt {}"}}\n', 100_000),
        (".csv", "prompt {}\n", 100_000),
    ],
    ids=SUFFIXES[:3],
)
def test_memory_does_not_grow_with_the_file(tmp_path, suffix, record, count):
    path = tmp_path / f"p{suffix}"
    with path.open("w") as file:
        file.write("prompt\n" * (suffix == ".csv"))
        file.writelines(record.format(i) for i in range(count))
    tracemalloc.start()
    try:
        prompts = open_prompts(path)
        seen = {text for position in range(0, count, 1000) for text in texts(prompts(position, 2))}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(prompts) == count
    assert len(seen) == 2 * count / 1000
    assert peak < 2e6  # the offsets of 100,000 lines in a list take 4 MB


def test_parquet_keeps_one_row_group(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": f"prompt {i} " + "x" * 1000} for i in range(20_000)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "p.parquet", row_group_size=500)
    before = arrow.total_allocated_bytes()
    prompts = open_prompts(tmp_path / "p.parquet")
    prompts(0, 200)
    assert arrow.total_allocated_bytes() - before < 4e6  # of 20 MB
