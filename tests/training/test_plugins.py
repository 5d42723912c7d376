"""A part of your own by name - kernel, objective, reward, model, tracker: from `run.imports` and from a package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sage_grpo import registry, tracker
from sage_grpo.cli import app
from sage_grpo.config import ConfigError, dump_recipe, load_recipe
from sage_grpo.inference.reopen import refuse_code
from sage_grpo.math.kernels import KERNELS
from sage_grpo.math.objectives import OBJECTIVES
from sage_grpo.runs.tracker import TRACKERS
from sage_grpo.training.build import check_names, find_reward
from sage_grpo.training.trackers import make_trackers

PARTS = '''"""One part of each kind."""

from dataclasses import dataclass

from sage_grpo import kernel, model, objective, reward, tracker
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.math.steps import euler_maruyama
from sage_grpo.math.objectives.grpo import Grpo


@kernel()
def {prefix}_kernel(sigma, sigma_next, eta):
    return euler_maruyama(sigma, sigma_next, 0.5 * eta**2 * (sigma**2 - sigma_next**2))


@objective("{prefix}_objective")
@dataclass(frozen=True, kw_only=True)
class Mine(Grpo):
    pass


@reward("{prefix}_reward")
def brightness(videos, prompts):
    return videos.float().mean((1, 2, 3, 4)) / 255


@model("{prefix}_model")
class Shapes(ShapesModel):
    pass


@tracker("{prefix}_tracker")
class Written:
    def __init__(self, run):
        self.file = (run.folder / "written.txt").open("a")

    def log(self, step, metrics):
        print(step, metrics["reward/mean"], file=self.file)

    def video(self, step, name, path):
        print(step, name, path.name, file=self.file)

    def close(self):
        self.file.close()
'''
SMALL = {
    "policy": {"num_iterations": 1, "prompts_per_iteration": 2, "num_generations": 4, "batch_size": 8},
    "gauge": {"every": 0},
}
PLACES = {"reward": ":brightness", "model": ":Shapes"}
PROMPT = ("--prompt", "a red circle moving left")
KINDS = ("kernel", "objective", "reward", "model", "tracker")
KNOWN = (KERNELS, OBJECTIVES, TRACKERS, *registry._OWN.values())


def recipe(prefix, **run):
    """A recipe that names a part of each kind."""
    return {
        "model": {"type": f"{prefix}_model"},
        "rewards": [{"type": f"{prefix}_reward"}],
        "sampling": {"kernel": f"{prefix}_kernel", "steps": 4, "shift": 3.0},
        "policy": {**SMALL["policy"], "objective": f"{prefix}_objective"},
        "gauge": SMALL["gauge"],
        "run": {"iterations": 1, "sample_every": 1, "samples": 1, "trackers": [f"{prefix}_tracker"], **run},
    }


@pytest.fixture
def forget():
    """What a test registers is not there for the next."""
    before = [dict(known) for known in KNOWN]
    modules, path = set(sys.modules), list(sys.path)
    yield
    for known, old in zip(KNOWN, before, strict=True):
        known.clear()
        known.update(old)
    for name in set(sys.modules) - modules:
        if name.startswith("parts_"):
            del sys.modules[name]
    sys.path[:] = path


def write(folder, prefix):
    name = f"parts_{prefix}"
    (folder / f"{name}.py").write_text(PARTS.format(prefix=prefix))
    sys.path.insert(0, str(folder))
    return name


def announce(folder, prefix):
    """What pip writes when it installs a package with these entry points."""
    place = folder / f"{prefix}-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {prefix}\nVersion: 1.0\n")
    points = [f"[sage_grpo.{kind}s]\n{prefix}_{kind} = parts_{prefix}{PLACES.get(kind, '')}\n" for kind in KINDS]
    (place / "entry_points.txt").write_text("\n".join(points))


def test_all_are_known_once_their_module_is_imported(tmp_path, forget):
    module = write(tmp_path, "mine")
    for kind in KINDS:
        values = recipe("mine")
        section, key = {"kernel": ("sampling", "kernel"), "objective": ("policy", "objective")}.get(kind, (None, None))
        small = {**recipe("mine", trackers=[]), "rewards": [{"type": "shapes"}], "model": {"type": "shapes"}}
        small["sampling"] = {**values["sampling"], "kernel": "sage"}
        small["policy"] = {**values["policy"], "objective": "grpo"}
        if section:
            small[section][key] = f"mine_{kind}"
        else:
            name = {"reward": "rewards", "model": "model", "tracker": "run"}[kind]
            small[name] = values[name]
        with pytest.raises(ConfigError, match=f"mine_{kind}"):
            check_names(load_recipe(small))
    check_names(load_recipe(recipe("mine", imports=[module])))


def test_an_installed_package_needs_no_imports(tmp_path, forget):
    module = write(tmp_path, "plugged")
    announce(tmp_path, "plugged")
    assert module not in sys.modules
    assert "plugged_reward" in registry.installed("reward")
    assert module not in sys.modules  # to look which there are imports nothing
    check_names(load_recipe(recipe("plugged")))
    assert module in sys.modules


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            None,
            "run.imports: parts_broken cannot be imported: ModuleNotFoundError.*put parts_broken.py into the folder",
        ),
        ("1 / 0\n", "run.imports: parts_broken cannot be imported: ZeroDivisionError: division by zero"),
        ("from sage_grpo import reward\n\n@reward('motion')\ndef f(v, p): ...\n", "reward 'motion' is built in; give"),
        (
            "from sage_grpo import kernel\n\n@kernel()\ndef sage(a, b, c): ...\n",
            "kernel 'sage' is already registered, by sage_grpo.math.kernels",
        ),
        (
            "from sage_grpo import objective\n\n@objective('nft')\nclass X: ...\n",
            "objective 'nft' is already registered, by sage_grpo.math.objectives.nft",
        ),
        (
            "from sage_grpo import reward\n\n@reward('x')\ndef f(v, p): ...\n\n@reward('x')\ndef g(v, p): ...\n",
            "reward 'x' is registered twice, by parts_broken:f and parts_broken:g",
        ),
    ],
)
def test_a_module_that_is_wrong_is_told(tmp_path, forget, source, said):
    if source:
        (tmp_path / "parts_broken.py").write_text(source)
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        check_names(load_recipe({"run": {"imports": ["parts_broken"]}, "rewards": [{"type": "motion"}]}))


def test_a_plugin_that_keeps_no_promise_is_told(tmp_path, forget):
    write(tmp_path, "plugged")
    announce(tmp_path, "plugged")
    (tmp_path / "parts_plugged.py").write_text("")
    with pytest.raises(ConfigError, match="parts_plugged registers no kernel of that name"):
        check_names(load_recipe(recipe("plugged")))


def test_a_wrong_name_is_told_the_nearest_of_ones_own(tmp_path, forget):
    registry._import(write(tmp_path, "mine"), "here")
    with pytest.raises(ConfigError, match=r"did you mean 'mine_reward'\?.*run.imports"):
        registry.resolve_reward("mine_rewrad")


def test_what_is_no_reward_is_not_called(tmp_path, forget):
    (tmp_path / "parts_odd.py").write_text("from sage_grpo import reward\n\n@reward('odd')\nclass Odd: ...\n")
    sys.path.insert(0, str(tmp_path))
    registry._import("parts_odd", "here")
    with pytest.raises(ConfigError, match="Odd is neither a reward nor makes one"):
        registry.resolve_reward("odd")


def test_options_of_a_function_are_refused(tmp_path, forget):
    registry._import(write(tmp_path, "mine"), "here")
    config = load_recipe({"rewards": [{"type": "mine_reward", "options": {"limit": 1}}]})
    with pytest.raises(ConfigError, match="mine_reward takes none"):
        find_reward(config.rewards[0])


def test_a_run_folder_imports_nothing_that_is_not_installed(tmp_path, forget):
    module = write(tmp_path, "mine")
    stranger = load_recipe(recipe("mine", imports=[module]))
    with pytest.raises(ConfigError, match=rf"module '{module}', model 'mine_model', reward 'mine_reward'"):
        refuse_code(stranger, Path("run/config.yaml"), stranger.rewards)
    assert module not in sys.modules
    write(tmp_path, "plugged")
    announce(tmp_path, "plugged")
    own = load_recipe(recipe("plugged"))
    refuse_code(own, Path("run/config.yaml"), own.rewards)


def test_only_training_imports_an_installed_tracker(tmp_path, forget):
    module = write(tmp_path, "plugged")
    announce(tmp_path, "plugged")
    config = load_recipe({"run": {"trackers": ["plugged_tracker"]}, "rewards": [{"type": "motion"}]})
    registry.load_plugins(config)  # as sample, export and eval do
    assert module not in sys.modules
    check_names(config)
    assert module in sys.modules


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a module, a recipe that names its parts, and a run of it."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "parts_mine.py").write_text(PARTS.format(prefix="mine"))
    (folder / "mine.yaml").write_text(dump_recipe(load_recipe(recipe("mine", imports=["parts_mine"], out="run"))))
    for words in (("train", "mine.yaml"), ("sample", "mine.yaml", *PROMPT, "--out", "videos")):
        assert command(folder, *words).returncode == 0
    return folder


def command(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "sage_grpo", *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_tracker_of_ones_own_records_the_run(trained):
    lines = (trained / "run" / "written.txt").read_text().splitlines()
    (logged,) = [line for line in lines if len(line.split()) == 2]
    assert logged.startswith("1 ")
    assert any(line.endswith(".mp4") for line in lines)


def test_a_tracker_that_lacks_a_method_is_told(tmp_path, forget):
    class Half:
        def __init__(self, run):
            pass

        def log(self, step, metrics):
            pass

    with pytest.raises(ConfigError, match="tracker 'half': Half has no video, close"):  # before anything is loaded
        tracker("half")(Half)

    def made(run):
        return Half(run)

    tracker("half")(made)
    with pytest.raises(ConfigError, match="tracker 'half': Half has no video, close"):
        make_trackers(["half"], tmp_path, config={}, name="x", resume_at=None)
    with pytest.raises(ConfigError, match="did you mean 'half'"):
        make_trackers(["hafl"], tmp_path, config={}, name="x", resume_at=None)
    for name in ("wandb", "jsonl"):
        with pytest.raises(ConfigError, match=f"tracker '{name}' is built in; give .*Half another name"):
            tracker(name)(Half)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("train", "mine.yaml", "--check"),
        ("plan", "mine.yaml", "--json"),
        ("rehearse", "mine.yaml"),
        ("rehearse", "mine.yaml", "--processes", "2"),
        ("tune", "mine.yaml", "--try", "optimizer.lr=1e-4,2e-4", "--passes", "900", "--out", "tuned", "--workers", "1"),
        ("sample", "run", *PROMPT, "--out", "samples", "--trust-code"),
        ("export", "run", "--out", "exported", "--trust-code"),
        ("eval", "run", "--limit", "2", "--seeds", "1", "--out", "compared", "--trust-code"),
        ("rewards", "score", "videos", "--rewards", "mine.yaml", "--out", "scored"),
    ],
    ids=" ".join,
)
def test_every_command_knows_them(words, trained):
    """In a process of its own, where nothing was imported before."""
    done = command(trained, *words)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-500:]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("sample", "run", *PROMPT), ("export", "run"), ("eval", "run")], ids=" ".join)
def test_a_run_folder_needs_trust(words, trained):
    done = command(trained, *words, "--out", "refused")
    assert done.returncode == 2
    assert "module 'parts_mine'" in " ".join(done.stderr.split())
    assert not (trained / "refused").exists()


@pytest.mark.slow
def test_a_package_that_pip_installed(tmp_path):
    """Built from a pyproject.toml like the one on docs/plug-ins.md, into a folder of its own."""
    pytest.importorskip("hatchling")
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "parts_plugged.py").write_text(PARTS.format(prefix="plugged"))
    points = "\n".join(
        f'[project.entry-points."sage_grpo.{kind}s"]\nplugged_{kind} = "parts_plugged{place}"\n'
        for kind, place in ((kind, PLACES.get(kind, "")) for kind in KINDS)
    )
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        f'[project]\nname = "plugged"\nversion = "1.0"\n\n{points}\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["parts_plugged.py"]\n'
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, capture_output=True)

    (tmp_path / "plugged.yaml").write_text(dump_recipe(load_recipe(recipe("plugged", out=str(tmp_path / "run")))))
    environment = os.environ | {"PYTHONPATH": str(target)}
    command = [sys.executable, "-m", "sage_grpo", "train", "plugged.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert CliRunner().invoke(app, ["train", str(tmp_path / "plugged.yaml"), "--check"]).exit_code == 2
