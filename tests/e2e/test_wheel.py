"""The built wheel and the source distribution, each in an environment that has nothing else of ours.

CI builds them and names their folder in SAGE_GRPO_DIST.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    if "SAGE_GRPO_DIST" in os.environ:
        return Path(os.environ["SAGE_GRPO_DIST"])
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(dist):
    return next(dist.glob("*.tar.gz"))


@pytest.fixture
def environment(tmp_path):
    """A new virtual environment. It borrows the libraries of this one, but not our package: a path file that names
    a folder does not run the path files in it, and so does not find an editable install."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    libraries = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (libraries / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def install(environment, artefact):
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-build-isolation", str(artefact)], check=True)


def run(environment, folder, *words):
    folder.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [str(environment / "bin" / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=folder, env=clean, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_wheel_runs_in_an_empty_folder(wheel, environment, tmp_path):
    install(environment, wheel)
    where = run(environment, tmp_path / "empty", "python", "-c", "import sage_grpo; print(sage_grpo.__file__)")
    assert str(environment) in where
    assert wheel.name.split("-")[1] in run(environment, tmp_path / "empty", "sage-grpo", "--version")
    assert len(json.loads(run(environment, tmp_path / "empty", "sage-grpo", "explain", "--json"))) == 20


def test_source_distribution_builds_installs_and_trains(sdist, environment, tmp_path):
    install(environment, sdist)
    words = ["lab", "--iterations", "1", "--samples", "48", "--out", "lab", "--json"]
    told = json.loads(run(environment, tmp_path / "empty", "sage-grpo", *words).splitlines()[-1])
    assert told["samples"] == 48
    assert (tmp_path / "empty" / "lab" / "before_after.html").is_file()


def test_source_distribution_is_whole(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "constraints.txt",
        "mkdocs.yml",
        "Dockerfile",
        "Makefile",
        "docs/index.md",
        "src/sage_grpo/recipes/lab.yaml",
        "tests/support.py",
    }
    assert needed <= names
    assert not [name for name in names if name.startswith(("site/", "runs/", ".cache/"))]


def test_wheel_carries_types_and_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "sage_grpo/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"sage_grpo/data/prompt_sets/{name}" for name in ("videos.jsonl", "LICENSE")} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "docs"))]


@pytest.mark.parametrize("command", ["rehearse", "train", "sample"])
def test_a_missing_extra_says_the_exact_line(command, tmp_path):
    """Without diffusers and peft installed: one sentence, no stack trace."""
    (tmp_path / "prompts.txt").write_text("a cat\n")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['diffusers', 'transformers', 'peft', 'ftfy'])); "
        f"sys.argv = ['sage-grpo', '{command}', 'wan-1.3b-24gb-lora', 'rewards=[{{type: shapes}}]']; "
        "sys.argv = sys.argv[:3] if sys.argv[1] == 'sample' else sys.argv; "
        "from sage_grpo.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "pip install 'sage-grpo[models]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
