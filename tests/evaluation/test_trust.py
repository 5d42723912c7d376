"""A run folder of somebody else runs no code: what its recipe names is built in, or it is refused before its import."""

import shutil
import sys

import pytest
import yaml
from typer.testing import CliRunner

from sage_grpo.cli import app
from sage_grpo.config import ConfigError, RewardConfig
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import resolve_model
from sage_grpo.training.build import build_reward

SHELL = {"type": "os:system", "options": {"command": "touch ran"}}


def plant(folder, module, line):
    """A module of that name beside the run, which leaves a file when it is imported."""
    (folder / f"{module}.py").write_text(f"open('imported', 'w').close()\n{line}\n")


def recipe_of(path, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def invoke(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "500", "NO_COLOR": "1"})
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder that a person stands in, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("command", [["sample"], ["export", "--out", "out"], ["eval", "--out", "out"]])
def test_a_model_of_a_run_folder_is_not_imported(command, here):
    plant(here, "evil", "model = print")
    run = recipe_of(here / "theirs" / "config.yaml", model={"type": "evil:model"}).parent
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "checkpoints" / "step-00000001" / "manifest.json").write_text("{}")
    code, said = invoke(*command, run)
    assert code == 2
    assert "names what could run code or send a secret: model 'evil:model'" in said
    assert "--trust-code" in said
    assert not (here / "imported").exists()


@pytest.mark.parametrize("section", ["rewards", "monitors"])
def test_a_scorer_of_a_run_folder_is_not_called(section, here):
    path = recipe_of(here / "theirs" / "config.yaml", **{section: [SHELL]})
    code, said = invoke("eval", path, "--out", "out", "--limit", 1, "--seeds", 1)
    assert code == 2
    assert "reward 'os:system'" in said
    assert not (here / "ran").exists()


def test_a_run_folder_does_not_choose_the_variable_that_is_sent(here):
    entry = {"type": "http", "options": {"url": "http://127.0.0.1:1", "token_variable": "HOME"}}
    code, said = invoke("eval", recipe_of(here / "theirs" / "config.yaml", rewards=[entry]), "--out", "out")
    assert code == 2
    assert "token_variable='HOME' of http" in said


@pytest.mark.slow
def test_a_run_with_a_scorer_of_ones_own(run, here):
    """Refused without the flag, scored with it; to sample it asks for no scorer, so it needs no flag."""
    shutil.copytree(run, here / "mine")
    recipe = here / "mine" / "config.yaml"
    values = yaml.safe_load(recipe.read_text()) | {"monitors": [{"type": "evil:grey"}]}
    recipe.write_text(yaml.safe_dump(values))
    plant(here, "evil", "def grey(videos, prompts): return [1.0] * len(videos)")
    code, said = invoke("sample", "mine", "--count", 1)
    assert code == 0, said
    few = ["eval", "mine", "--limit", 1, "--seeds", 1, "--steps", 2]
    code, said = invoke(*few)
    assert code == 2
    assert "reward 'evil:grey'" in said
    assert not (here / "imported").exists()
    code, said = invoke(*few, "--trust-code")
    assert code == 0, said
    assert (here / "imported").exists()


class Grey(Reward):
    names = ("grey",)

    def __init__(self, level=0.5):
        self.level = level

    def score(self, videos, prompts):
        return Scores.of(videos.new_zeros(len(videos), 1).double() + self.level)


def grey_factory(level: float) -> Grey:
    return Grey(level)


def unannotated(level):
    return Grey(level)


def plain(videos, prompts):
    return [0.25 for _ in videos]


STRANGERS = ["os:system", "subprocess:Popen", "subprocess:run", "shutil:rmtree", "builtins:print", "json:loads"]


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("section", ["rewards", "monitors"])
def test_what_is_no_reward_is_not_called_by_a_recipe_either(name, section, here):
    recipe = recipe_of(here / "own.yaml", extends="lab", **{section: [{"type": name, "options": {"command": "x"}}]})
    code, said = invoke("train", recipe, "--check")
    assert code == 2
    assert f"reward '{name}' is not called" in said


@pytest.mark.parametrize("name", [*STRANGERS, f"{__name__}:Grey", f"{__name__}:unannotated"])
def test_what_is_no_model_is_not_called(name):
    with pytest.raises(ConfigError, match="is neither a video model nor makes one"):
        resolve_model(name)


@pytest.mark.parametrize("name", [":", ".x:y", "x:", "a b:c", "x:y.", "x::y"])
def test_a_name_that_is_none(name):
    with pytest.raises(ConfigError, match="names no place in a package"):
        resolve_model(name)


def test_a_class_a_factory_and_a_function():
    def made(name, **options):
        return build_reward(RewardConfig(type=f"{__name__}:{name}", options=options))

    assert made("Grey", level=0.1).level == 0.1
    assert made("grey_factory", level=0.2).level == 0.2
    assert made("plain").names == ("plain",)
    with pytest.raises(ConfigError, match=r"unannotated takes none: .* `-> Reward`"):
        made("unannotated", level=0.3)
    with pytest.raises(ConfigError, match="missing a required argument: 'level'"):
        made("grey_factory")
