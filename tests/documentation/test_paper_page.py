"""The 128 statements of docs/paper-statements.md: numbers, counts and states agree, and what they name exists."""

import re
from collections import Counter

import pytest

from documentation.blocks import ROOT, check, commands
from sage_grpo.config import RecipeConfig
from sage_grpo.config.load import shipped_recipes
from sage_grpo.math.kernels import KERNELS

STATEMENTS, PAPER = (ROOT / "docs" / name for name in ("paper-statements.md", "paper.md"))
STATES = ("equal", "differs openly", "missing")
TOP = re.compile(r"\*\*(\d+) are equal, (\d+) differ openly, (\d+) (?:is|are) missing\.\*\*")
RECIPE = re.compile(r"(?:hunyuan15|lab)-[\w.-]+")
SETTING = re.compile(r"([a-z_]+)\.(?!txt\b)([a-z_]+)(?=[=:]|$)")
PLACES = (ROOT, ROOT / "src" / "sage_grpo")


def rows(text: str) -> list[list[str]]:
    """The cells of each numbered row; `\\|` is no border."""
    lines = [line for line in text.splitlines() if re.match(r"\| *\d+ *\|", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def miscounted(text: str) -> list[str]:
    """What is wrong with the numbers, the states, or the counts at the top."""
    found, table = [], rows(text)
    if [row[0] for row in table] != [str(n + 1) for n in range(128)]:
        found.append("rows are not numbered from 1 to 128")
    found += [f"row {row[0]}: {len(row)} cells, or an empty one" for row in table if len(row) != 4 or not all(row)]
    found += [f"row {row[0]}: {row[-1]!r} is no state" for row in table if row[-1] not in STATES]
    counts, said = Counter(row[-1] for row in table), TOP.search(text)
    if not said or [int(n) for n in said.groups()] != [counts[state] for state in STATES]:
        found.append(f"the counts at the top are not those of the rows: {dict(counts)}")
    return found


def unknown(text: str) -> list[str]:
    """The recipes, settings, kernels and files that a text names in code and that do not exist."""
    found = []
    for code in re.findall(r"`([^`\n]+)`", text):
        for word in code.split():
            setting, path = SETTING.match(word), re.fullmatch(r"(?:\w+/)+[\w.]+(?:py|png|svg)?", word)
            if RECIPE.fullmatch(word) and word not in shipped_recipes():
                found.append(f"recipe {word}")
            elif setting and setting[1] in RecipeConfig.model_fields:
                section = RecipeConfig.model_fields[setting[1]].annotation
                if setting[2] not in section.model_fields:
                    found.append(f"setting {word}")
            elif path and not any((place / word).exists() for place in PLACES):
                found.append(f"file {word}")
    return found + [f"kernel {name}" for name in re.findall(r"[Kk]ernel `(\w+)`", text) if name not in KERNELS]


def here(text: str) -> str:
    """The third cells: the statements themselves name files and flags of others."""
    return "\n".join(row[2] for row in rows(text))


def test_all_statements_are_counted():
    assert not miscounted(STATEMENTS.read_text())


def test_what_the_rows_name_exists():
    assert not unknown(here(STATEMENTS.read_text()))


def test_recipes_and_settings_of_the_page_exist():
    text = re.sub(r"^```.*?^```$|`(?:checkpoints|ckpts)/[^`]*`", "", PAPER.read_text(), flags=re.M | re.S)
    assert not unknown(text)


@pytest.mark.slow
def test_every_table_and_figure_has_its_row():
    """Each experiment of `sage-grpo paper` is on the page, and each command there exists, with its recipe."""
    from sage_grpo.paper.experiments import EXPERIMENTS

    text = PAPER.read_text() + STATEMENTS.read_text()
    named = set()
    for code in re.findall(r"`(sage-grpo paper [^`]+)`", text):
        (words,) = commands(code)
        check(words, {})
        named.add(words[2])
        assert "--base" not in words or words[words.index("--base") + 1] in shipped_recipes(), code
    assert named == set(EXPERIMENTS)


def test_cps_of_the_paper_is_the_published_one():
    """As docs/paper.md says; `cps` has another log-likelihood."""
    from sage_grpo.paper.experiments import METHODS

    assert METHODS["CPS"][0] == "cps_unscaled"


@pytest.mark.parametrize(
    ("old", "new"),
    [("| 7 |", "| 8 |"), ("| equal |", "| differs openly |"), ("| equal |", "| same |"), ("| missing |", "| equal |")],
)
def test_a_wrong_count_is_seen(old, new):
    text = STATEMENTS.read_text()
    assert old in text
    assert miscounted(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "code", ["hunyuan15-65gpu", "kl.velocty: sampled", "math/kernel.py", "kl.anchor=none kl.bta=1"]
)
def test_a_wrong_name_is_seen(code):
    assert unknown(f"`{code}`")


def test_a_wrong_kernel_is_seen():
    assert unknown("kernel `sgae`")
