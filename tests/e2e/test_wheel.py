"""The built wheel, in an empty folder, as a new user has it. CI builds it and names it in SAGE_GRPO_WHEEL."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if "SAGE_GRPO_WHEEL" in os.environ:
        return Path(os.environ["SAGE_GRPO_WHEEL"])
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_wheel_runs_in_an_empty_folder(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(code):
        return subprocess.run(
            [sys.executable, "-c", code], cwd=empty, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert str(site) in run("import sage_grpo; print(sage_grpo.__file__)")
    rows = json.loads(
        run("import sys; sys.argv = ['sage-grpo', 'explain', '--json']; from sage_grpo.cli import main; main()")
    )
    assert len(rows) == 20


def test_wheel_carries_types_and_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "sage_grpo/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"sage_grpo/data/prompt_sets/{name}" for name in ("videos.jsonl", "LICENSE")} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "docs"))]


@pytest.mark.parametrize("command", ["rehearse", "train", "sample"])
def test_a_missing_extra_says_the_exact_line(command):
    """Without diffusers and peft installed: one sentence, no stack trace."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['diffusers', 'transformers', 'peft', 'ftfy'])); "
        f"sys.argv = ['sage-grpo', '{command}', 'wan-1.3b-24gb-lora', 'rewards=[{{type: shapes}}]']; "
        "sys.argv = sys.argv[:3] if sys.argv[1] == 'sample' else sys.argv; "
        "from sage_grpo.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "pip install 'sage-grpo[models]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
