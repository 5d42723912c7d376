"""A mistake on the command line ends in a sentence: the table of tests/clumsy.py, and options that share a check."""

import math
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.models import OptionInfo

import clumsy
from sage_grpo.cli import app
from sage_grpo.config.algorithm import LARGEST_SEED


def functions(group, words=()):
    """Every command's function, by the words that lead to it."""
    for info in group.registered_commands:
        yield (*words, info.name or info.callback.__name__), info.callback
    for info in group.registered_groups:
        yield from functions(info.typer_instance, (*words, info.name))


def options():
    """Rows of a command, an option's name, its type and how typer is to treat it."""
    for words, function in functions(app):
        for name, kind in get_type_hints(function, include_extras=True).items():
            for how in getattr(kind, "__metadata__", ()):
                if isinstance(how, OptionInfo):
                    yield " ".join((*words, name)), name, kind.__origin__, how.callback


EVERY = list(options())
FLOATS = [row for row in EVERY if row[2] in (float, float | None)]
FOLDERS = [row for row in EVERY if row[1] == "out"]
SEEDS = [row for row in EVERY if row[1] == "seed"]


def names(rows):
    return [row[0] for row in rows]


def refused(row, value, sentence):
    assert row[3] is not None, f"{row[0]} has no check"
    with pytest.raises(typer.BadParameter, match=sentence):
        row[3](value)


def test_options_of_every_kind_are_found():
    assert min(len(FLOATS), len(FOLDERS)) > 10
    assert len(SEEDS) > 4


@pytest.mark.parametrize("row", FLOATS, ids=names(FLOATS))
def test_no_number_is_infinite(row):
    for value in (math.nan, math.inf, -math.inf):
        refused(row, value, f"{value} is not a finite number")


@pytest.mark.parametrize("row", FOLDERS, ids=names(FOLDERS))
def test_no_result_goes_where_it_cannot(row, tmp_path):
    (tmp_path / "file").touch()
    refused(row, tmp_path / "file" / "x" / "y", "is a file, not a folder")
    refused(row, Path("/proc/nowhere/x"), "cannot be written")


@pytest.mark.parametrize("row", SEEDS, ids=names(SEEDS))
def test_every_seed_is_one_of_a_recipe(row):
    for seed in (-1, LARGEST_SEED + 1):
        refused(row, seed, "is not from 0 to")


@pytest.fixture(scope="module")
def warm():
    clumsy.warm_up()


HERE, APART = ([row for row in clumsy.TABLE if clumsy.may_stay(row) is stays] for stays in (True, False))


def name(row):
    return row.line[:80]


@pytest.mark.slow
@pytest.mark.parametrize("row", HERE, ids=name)
def test_a_clumsy_invocation(row):
    """In this process; `make clumsy` starts one for each."""
    wrong, said = clumsy.fault_here(row)
    assert wrong is None, f"sage-grpo {row.line}: {wrong}\n{said}"


@pytest.mark.slow
@pytest.mark.parametrize("row", [*APART, HERE[0], HERE[-1]], ids=name)
def test_a_clumsy_invocation_in_a_process_of_its_own(row, warm):
    wrong, said = clumsy.fault(row)
    assert wrong is None, f"sage-grpo {row.line}: {wrong}\n{said}"


def test_a_trace_in_this_process_is_seen(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr("sage_grpo.config.load.read_settings", broken)
    assert clumsy.fault_here(clumsy.Clumsy("train nosuch --check", ""))[0] == "a stack trace"


def test_the_table_knows_a_trace_from_a_sentence(monkeypatch):
    """What runs is replaced by faults of each kind."""
    for code, wrong in (
        ("raise ValueError('here it is')", "a stack trace"),
        ("print('here it is')", "ended with 0, not 2"),
        ("print('Wrong.'); exit(2)", "the answer does not say 'here it is'"),
        ("print('here it is'); exit(2)", None),
    ):
        monkeypatch.setattr(clumsy, "PROGRAM", ["-c", code])
        assert clumsy.fault(clumsy.Clumsy("any", "here it is"))[0] == wrong
    monkeypatch.setattr(clumsy, "PROGRAM", ["-c", "import time; time.sleep(60)"])
    assert clumsy.fault(clumsy.Clumsy("any", ""), limit=0.5)[0] == "not ended within 0 s"
