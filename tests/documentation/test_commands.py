"""Every command line of README and documentation is run, or says what it needs and is checked word by word."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from documentation.blocks import PAGES, ROOT, Block, blocks, check, commands
from forks.session import search_path
from sage_grpo.config import FleetConfig, RecipeConfig
from sage_grpo.config.load import validate

OWN_TEST = {ROOT / "docs" / "add-a-model.md"}  # tests/e2e/test_add_a_model.py asks more
RUNNABLE = [
    page for page in PAGES if page not in OWN_TEST and any(b.language in ("sh", "python", "bash") for b in blocks(page))
]
ALL = [(page, block) for page in PAGES for block in blocks(page)]


def name_of(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else f"line {value.line}"


def run(arguments: list[str], folder: Path, stdin: str) -> None:
    """In a folder of its own, with the package that is installed here."""
    environment = os.environ | {"PATH": search_path(), "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{stdin}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="session")
def first_run(tmp_path_factory):
    """The run that readers have in runs/first: a short one of the laboratory."""
    folder = tmp_path_factory.mktemp("first")
    settings = "run.out=runs/first run.iterations=1 run.samples=2 policy.num_iterations=1 gauge.every=0"
    run(["bash", "-eu"], folder, f"sage-grpo train lab {settings}")
    return folder / "runs"


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_a_page_can_be_followed(page, tmp_path, request):
    """Files are written where the page says so, and what is not marked is run in the order of the page."""
    if any("runs/first" in block.ci for block in blocks(page)):
        shutil.copytree(request.getfixturevalue("first_run"), tmp_path / "runs")
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.code)
        elif block.language in ("sh", "bash") and (block.ci or not block.mark):
            run(["bash", "-euo", "pipefail"], tmp_path, block.ci or block.code)
        elif block.language == "python" and (block.ci or not block.mark):
            run([sys.executable, "-"], tmp_path, block.ci or block.code)


@pytest.mark.parametrize(("page", "block"), [p for p in ALL if p[1].language in ("sh", "bash")], ids=name_of)
def test_command_lines_exist(page, block):
    assert block.mark or not block.ci, "a block that is run in another form says what it needs or takes"
    files = {b.file: b.code for b in blocks(page) if b.file}
    for words in [*commands(block.code), *commands(block.ci)]:
        check(words, files)


@pytest.mark.parametrize(("page", "block"), [p for p in ALL if p[1].language == "yaml"], ids=name_of)
def test_settings_exist(page, block):
    values = yaml.safe_load(block.code)
    validate(values, FleetConfig if "scorers" in values else RecipeConfig)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_within_sentences_exist(page):
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.M | re.S)
    for code in re.findall(r"`((?:sage-grpo|make|pip install|torchrun|python -m) [^`]+)`", text):
        for words in commands(code):
            check(words, {}, whole=False)


@pytest.mark.parametrize(
    "code",
    [
        "sage-grpo lab --iteration 3",
        "sage-grpo labs",
        "sage-grpo train lab policy.clop=1",
        "sage-grpo train lap",
        "sage-grpo export",
        "torchrun --nproc-per-node=8 -m sage_grpo train lab run.outt=x",
        "make chekc",
        "sage-grp lab",
        "pip install 'sage-grpo[modles]'",
        "python docs/none.py",
        "sage-grpo plan lab policy.clop=1",
        "docker run --rm sage-grpo train lab run.oout=x",
        "sage-grpo rewards adit",
        "sage-grpo rewards audit --cliips x",
        "sage-grpo train lab --check run.keep=0",
    ],
)
def test_a_planted_mistake_is_seen(code):
    (words,) = commands(code)
    seen = False
    try:
        check(words, {})
    except Exception as error:  # typer's, the schema's or an assertion
        seen = not isinstance(error, NameError | TypeError | AttributeError)
    assert seen


def test_a_block_is_read_as_it_is_meant(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '<!-- ci: sage-grpo --version -->\n```sh title="Needs 8 GPUs"\nsage-grpo lab  # a\nA=1 make x && cd y\n```\n'
    )
    block = blocks(page)[0]
    assert block == Block("sh", "sage-grpo lab  # a\nA=1 make x && cd y\n", "Needs 8 GPUs", "sage-grpo --version", 2)
    assert block.mark == "Needs 8 GPUs"
    assert not block.file
    assert commands(block.code) == [["sage-grpo", "lab"], ["make", "x"], ["cd", "y"]]
