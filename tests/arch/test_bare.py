"""A checkout with only the package and pytest: all tests are collected, and what needs more says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bare import brought, hidden

TESTS = Path(__file__).parents[1]


def collect(folder):
    paths = [str(TESTS), str(TESTS.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "bare", "-m", "", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        # without the extras much is skipped, which CI forbids for its own run
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "SAGE_GRPO_ALL": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_what_a_plain_installation_brings():
    pytest.importorskip("hypothesis")  # else there is nothing to hide
    assert {"sage-grpo", "torch", "numpy", "typer", "pytest"} <= brought()
    assert not {"diffusers", "hypothesis", "pytest-xdist", "ray"} & brought()
    assert "hypothesis" in hidden()
    assert not {"sage_grpo", "torch", "yaml", "PIL", "_pytest"} & hidden()


@pytest.mark.real_start
@pytest.mark.slow
def test_everything_is_collected_without_extras():
    done = collect(TESTS.parent)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "::test_everything_is_collected_without_extras" in done.stdout
    assert "could not import 'diffusers'" in done.stdout  # or nothing was hidden
    assert "could not import 'hypothesis'" in done.stdout


@pytest.mark.slow
def test_a_module_that_forgets_to_ask_is_seen(tmp_path):
    (tmp_path / "test_planted.py").write_text("from hypothesis import given\n\n\ndef test_one():\n    pass\n")
    done = collect(tmp_path)
    assert done.returncode != 0
    assert "No module named 'hypothesis'" in done.stdout
