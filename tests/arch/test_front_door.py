"""The public face: few names, each where it says, and importing the package costs next to nothing."""

import ast
import inspect
import json
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sage_grpo

ROOT = Path(__file__).parents[2]
FACE = ast.parse((ROOT / "src" / "sage_grpo" / "__init__.py").read_text())
LAZY = sorted(set(sage_grpo.__all__) - {"__version__"})


pytestmark = pytest.mark.real_start


def asked(code: str) -> dict:
    """What a fresh interpreter says: here everything is imported already."""
    code = f"import json, sys, time, sage_grpo\n{code}\nprint(json.dumps(said))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_importing_the_package_imports_nothing_heavy():
    heavy = "said = sorted({'torch', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules))"
    assert asked(heavy) == []


def test_importing_the_package_is_free():
    """CPU seconds of a whole interpreter that does nothing else; the clock of a busy machine says nothing."""
    assert asked("said = time.process_time()") < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("words", "times"), [(["--help"], 4), (["rewards", "list"], 7)])
def test_a_command_that_computes_nothing_answers_at_once(words, times):
    """Beside importing the libraries of any command, for seconds of a busy core say nothing.

    On a quiet one these libraries take 0.25 s, --help 0.35 and the list 0.75; torch alone would add 1.5.
    """

    def seconds(*command):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = [
        (seconds("-m", "sage_grpo", *words), seconds("-c", "import typer, rich.console, pydantic")) for _ in range(3)
    ]
    assert min(command / libraries for command, libraries in rounds) < times


@pytest.mark.parametrize("name", LAZY)
def test_every_name_is_that_of_its_home(name):
    home = f"sage_grpo.{sage_grpo._HOMES[name]}"
    value = getattr(sage_grpo, name)
    assert value is getattr(import_module(home), name)
    assert value.__module__.startswith(home), f"{name} is only passed through by {home}"
    assert inspect.getdoc(value), f"{name} says nothing about itself"


def test_table_and_type_checkers_see_the_same_names():
    (block,) = (node for node in FACE.body if isinstance(node, ast.If))
    shown = {
        alias.name: node.module.removeprefix("sage_grpo.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == sage_grpo._HOMES
    assert sorted(sage_grpo._HOMES) == LAZY
    assert sage_grpo.__all__ == sorted(sage_grpo.__all__)


def test_the_names_are_listed_before_they_are_imported():
    assert set(sage_grpo.__all__) <= set(asked("said = dir(sage_grpo)"))


def test_a_star_brings_them_all():
    space: dict = {}
    exec("from sage_grpo import *", space)
    assert set(sage_grpo.__all__) <= set(space)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("Trainr", "Trainer"), ("sigma_shedule", "sigma_schedule"), ("Rward", "Reward")],
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong, near):
    with pytest.raises(AttributeError, match=f"sage_grpo has no '{wrong}'; did you mean '{near}'"):
        getattr(sage_grpo, wrong)
    assert not hasattr(sage_grpo, wrong)


def test_a_name_like_none_is_answered_with_all_of_them():
    with pytest.raises(AttributeError, match=r"known: ConfigError, Prompt, .*sigma_schedule"):
        _ = sage_grpo.xyzzy


@pytest.mark.parametrize("home", ["sage_grpo.math", "sage_grpo.config", "sage_grpo.core"])
def test_modules_are_still_imported_by_their_names(home):
    assert asked(f"import {home}\nsaid = {home}.__name__") == home
