"""The notebooks of examples/ run from the first cell to the last, and what they show is kept in them."""

import base64
import json
import re

import pytest

from documentation.blocks import check, commands

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
import nbformat

from e2e.notebooks import NOTEBOOKS, execute

pytestmark = pytest.mark.slow

BY_NAME = {path.stem: path for path in NOTEBOOKS}


def names_of(path):
    return path.stem


def values(name, folder, what):
    """What the variables of a notebook are at its end."""
    book = execute(BY_NAME[name], folder, f"import json\nprint(json.dumps({what}))")
    return json.loads(book.cells[-1].outputs[0].text)


@pytest.mark.timeout(300)
def test_a_kernel(tmp_path):
    what = "{'before': before.flatten().tolist(), 'after': after.abs().max().item(), 'noise': table.s.tolist()}"
    seen = values("a-kernel", tmp_path, what)
    assert len(seen["before"]) == 7 * 4
    assert all(x == 0 for x in seen["before"])  # log-ratios: to the last bit
    assert seen["after"] > 1e-6
    assert all(s > 0 for s in seen["noise"][:-1])


@pytest.mark.timeout(300)
def test_your_own_reward(tmp_path):
    what = "{'first': first, 'last': last, 'lit': [brightness(x, prompts) for x in (before, after)]}"
    seen = values("your-own-reward", tmp_path, what)
    assert seen["last"] > 1.5 * seen["first"]
    old, new = seen["lit"]
    assert all(b > a for a, b in zip(old, new, strict=True))  # on seeds that were not trained on
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside itself"


@pytest.mark.timeout(300)
def test_your_own_model(tmp_path):
    what = (
        "{'tops': [height(x, None) for x in (before, after)], 'ratios': updates.ratios, 'said': said, 'errors': errors}"
    )
    seen = values("your-own-model", tmp_path, what)
    old, new = (sum(tops) / len(tops) for tops in seen["tops"])
    assert new > old + 0.05  # on seeds that were not trained on
    assert all(ratio == 1 for ratio in seen["ratios"][0::2])
    assert any(ratio != 1 for ratio in seen["ratios"][1::2])
    assert "dropout" in seen["said"]["dropout"]
    assert "no_grad" in seen["said"]["no_grad"]
    assert "forgotten.weight" in seen["said"]["spare"]
    assert "from noise to data" in seen["said"]["sign"]
    right, wrong = seen["errors"]
    assert right < 0.3
    assert wrong > 2 * right
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside itself"


@pytest.mark.timeout(300)
def test_reading_a_run(tmp_path):
    what = (
        "{'alarms': [sorted({a.measure for a in alarms_of(run)}) for run in runs], 'size': page.stat().st_size, "
        "'columns': {k: [run.column(k).tolist() for run in runs] for k in ('reward/mean', 'kl/penalty', 'clip_frac')}}"
    )
    seen = values("reading-a-run", tmp_path, what)
    quiet, ringing = seen["alarms"]
    assert not quiet
    assert {"base_error", "diversity"} <= set(ringing)
    steady, wild = seen["columns"]["reward/mean"]
    assert sum(steady[-5:]) / 5 > steady[0] + 0.3
    assert min(wild[1:9]) < wild[0] - 1
    for key in ("kl/penalty", "clip_frac"):  # what the text says of both
        low, high = seen["columns"][key]
        assert sum(high) > 2 * sum(low)
    assert seen["size"] > 100_000
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside itself"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names_of)
def test_what_a_notebook_shows_is_kept(path):
    """A reader on the web sees pictures, small ones, and no trace of the machine that drew them."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [
        base64.b64decode(output.data["image/png"]) for output in outputs if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 2
    assert max(map(len, pictures)) < 100_000
    assert not re.findall(r"/(?:tmp|home|root|work|opt|Users)/\w+", path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names_of)
def test_commands_of_a_notebook_exist(path):
    book = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    for code in re.findall(r"`(sage-grpo [^`]+)`", text):
        for words in commands(code):
            check(words, {}, whole=False)


def test_there_are_four():
    assert set(BY_NAME) == {"a-kernel", "reading-a-run", "your-own-model", "your-own-reward"}
