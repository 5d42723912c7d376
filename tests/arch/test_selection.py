"""Which tests run: the quick ones, all, or those that are named; and a skipped test is a failure where none may be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PLANTED = """
import pytest

def test_quick():
    pass

@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_slow():
    pass

@pytest.mark.sweep
def test_further_case():
    pass

@pytest.mark.slow
def test_wants_more():
    pytest.importorskip("no_such_library")
"""


def run(folder, *words, **environment):
    """By this project's settings, without plugins: as on a bare checkout."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pyproject.toml").write_text((TESTS.parent / "pyproject.toml").read_text())
    (folder / "test_planted.py").write_text(PLANTED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        # SAGE_GRPO_ALL is this run's own affair: CI sets it
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "SAGE_GRPO_ALL": "", "PYTHONPATH": str(TESTS)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()[-1] if done.stdout else done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["test_planted.py"], "1 passed, 3 deselected"),
        (["test_planted.py", "-m", ""], "3 passed, 1 skipped"),
        (["test_planted.py", "-m", "not sweep"], "2 passed, 1 skipped, 1 deselected"),
        (["test_planted.py", "-m", "slow"], "1 passed, 1 skipped, 2 deselected"),
        (["test_planted.py::test_slow"], "1 passed"),
        (["test_planted.py::test_further_case"], "1 passed"),
        (["test_planted.py::test_slow", "test_planted.py"], "1 passed, 3 deselected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_runs(words, told, tmp_path):
    code, last = run(tmp_path, *words)
    assert code == 0, last
    assert last.startswith(told)


@pytest.mark.slow
def test_a_library_that_is_missing_where_all_must_be_there(tmp_path):
    assert run(tmp_path, "test_planted.py", "-m", "", SAGE_GRPO_ALL="1")[0] == 1
    assert run(tmp_path, "test_planted.py", SAGE_GRPO_ALL="1")[0] == 0


def test_a_file_of_slow_tests_is_not_even_imported(tmp_path):
    (tmp_path / "test_heavy.py").write_text(
        "import no_such_library\nimport pytest\n\npytestmark = pytest.mark.slow\n\ndef test_one():\n    pass\n"
    )
    assert run(tmp_path)[0] == 0
    assert run(tmp_path, "-m", "not sweep")[0] != 0
