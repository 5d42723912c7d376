"""The trainer as a user meets it: a folder with everything in it, callbacks, functions as rewards, mistakes."""

import errno
import json
import time

import pytest
import torch
import typer
import yaml
from rich.console import Console
from typer.testing import CliRunner

from gaussian_model import GaussianModel
from sage_grpo.cli import app
from sage_grpo.cli.errors import user_errors
from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.core.callback import Callback
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.distributed.checkpoint import load_checkpoint
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.training.trackers import read_metrics
from sage_grpo.training.trainer import Trainer
from sage_grpo.videos import read_mp4


def brightness(videos, prompts):
    return videos.double().flatten(1).mean(1).tolist()


def recipe(out, **run):
    return {
        "sampling": {"steps": 5, "eta": 0.7, "shift": 3.0},
        "policy": {"prompts_per_iteration": 2, "batch_size": 8, "num_generations": 4, "clip": 0.1},
        "kl": {"high": 0.1, "warmup": 0, "ref_model_sync_steps": 3},
        "optimizer": {"lr": 1e-3, "ema": 0.9},
        "run": {"out": str(out), "iterations": 6, "save_every": 2, "sample_every": 3, "samples": 2, **run},
        "gauge": {"every": 2},
    }


def make(out, rewards=(brightness,), prompts=("a", "b", "c", "d", "e"), callbacks=(), **run):
    return Trainer(
        GaussianModel(), rewards, recipe(out, **run), list(prompts), callbacks=callbacks, console=Console(quiet=True)
    )


@pytest.mark.slow
def test_a_run_leaves_everything_behind(tmp_path):
    result = make(tmp_path / "run").train()
    folder = tmp_path / "run"
    assert result.iterations == 6
    assert yaml.safe_load((folder / "config.yaml").read_text())["policy"]["clip"] == 0.1
    assert load_recipe(folder / "config.yaml").run.iterations == 6  # the resolved recipe is a recipe
    assert "torch" in (folder / "environment.json").read_text()
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for key in (
        "reward/mean",
        "reward/std",
        "reward/brightness",
        "ratio_mean",
        "clip_frac",
        "kl/penalty",
        "kl/anchor",
        "kl/old",
        "zero_std_ratio",
        "grad_norm",
        "kl_weight",
    ):
        assert key in rows[0], key
    for series in ("ratio", "clip_frac", "gradient_raw", "gradient_equalized", "kl_penalty", "log_ratio_rms"):
        assert [k for k in rows[0] if k.startswith(f"steps/{series}/")] == [f"steps/{series}/{t:03d}" for t in range(4)]
    assert {"drift/kl_initial", "drift/base_error", "drift/diversity"} <= set(rows[0])
    assert "drift/base_error" not in rows[1]  # every second iteration
    assert list((folder / "tensorboard").glob("events.*"))
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())] == ["step-00000004", "step-00000006"]
    assert read_mp4(folder / "samples" / "000003" / "00.mp4").shape[0] == 4
    assert (folder / "samples" / "000006" / "sheet.png").stat().st_size > 1000
    asked = json.loads((folder / "samples" / "000006" / "prompts.json").read_text())
    assert [row["seed"] for row in asked] == list(range(len(list((folder / "samples" / "000006").glob("*.mp4")))))
    took = [row["seconds/rollout"] + row["seconds/update"] for row in rows]
    assert all(row["seconds/rollout"] > 0 and row["seconds/update"] > 0 for row in rows)
    assert sum(took[1:]) <= rows[-1]["time"] - rows[0]["time"] + 0.05  # phases are parts of the wall's time
    end = json.loads((folder / "end.json").read_text())
    assert (end["iteration"], end["stop_reason"], end["error"]) == (6, None, None)


@pytest.mark.slow
def test_a_run_that_fails_says_why_and_its_next_part_takes_that_back(tmp_path):
    def broken(videos, prompts):
        raise RuntimeError("no scorer at http://me:secret@host/score")

    with pytest.raises(RuntimeError, match="no scorer"):
        make(tmp_path, [broken]).train()
    error = json.loads((tmp_path / "end.json").read_text())["error"]
    assert error.startswith("RuntimeError: no scorer")
    assert "secret" not in error
    seen = []

    class Look(Callback):
        def on_start(self, loop):
            seen.append((tmp_path / "end.json").exists())

    make(tmp_path, callbacks=[Look()]).train()
    assert seen == [False]
    assert json.loads((tmp_path / "end.json").read_text())["error"] is None


def test_equalized_gradients_in_the_log_are_equal(tmp_path):
    """The two series differ by the equalizer: raw ones spread, equalized ones lie together."""
    make(tmp_path / "run", iterations=1).train()
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    raw, equal = (
        [v for k, v in row.items() if k.startswith(f"steps/gradient_{kind}/")] for kind in ("raw", "equalized")
    )
    assert max(raw) / min(raw) > 3 * max(equal) / min(equal)


def test_function_rewards(tmp_path):
    """Columns by name, None as failure, several functions at once."""
    seen = {}

    def with_columns(videos, prompts, target):
        seen["target"] = target
        return [None if i == 0 else float(t) for i, t in enumerate(target)]

    def greedy(videos, prompts, **columns):
        seen["columns"] = set(columns)
        return brightness(videos, prompts)

    prompts = [{"prompt": f"p{i}", "target": i, "note": "x"} for i in range(4)]
    result = make(tmp_path, (with_columns, greedy), prompts, iterations=1).train()
    assert len(seen["target"]) == 8
    assert seen["columns"] == {"target", "note"}
    assert result.last["reward/failed"] == 1 / 8
    assert {"reward/with_columns", "reward/greedy"} <= set(result.last)


def test_two_rewards_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="share the score name 'brightness'"):
        make(tmp_path, (brightness, brightness))


def test_callbacks_hang_on(tmp_path):
    class Count(Callback):
        n = 0

        def on_iteration(self, loop, metrics):
            self.n += 1
            metrics["mine"] = 1.0

    count = Count()
    make(tmp_path, callbacks=[count], iterations=2).train()
    assert count.n == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"type": "shape"}}, "did you mean 'shapes'"),
        ({"rewards": []}, "needs at least one"),
        ({"rewards": [{"type": "shapes", "weights": {"XQ": 1}}]}, "has the scores VQ, MQ, TA, not 'XQ'"),
        ({"model": {"type": "no.such.module:f"}, "rewards": [{"type": "shapes"}]}, "cannot be imported"),
    ],
)
def test_mistakes_in_a_recipe(values, message):
    base = {"rewards": [{"type": "shapes"}]}
    with pytest.raises(ConfigError, match=message):
        Trainer(config=base | values)


def test_json_on_the_command_line(tmp_path):
    result = CliRunner().invoke(app, ["train", "lab", "policy.clop=1"])
    assert result.exit_code == 2
    assert "did you mean policy.clip" in result.output
    assert "Traceback" not in result.output
    checked = CliRunner().invoke(app, ["train", "lab", "policy.clip=0.5", "--check"])
    assert yaml.safe_load(checked.stdout)["policy"]["clip"] == 0.5
    assert json.dumps(checked.stdout)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("sampling.kernel=sagee", "sampling.kernel: there is no kernel 'sagee'; did you mean 'sage'?"),
        ("model.type=shape", "model 'shape' is not known; did you mean 'shapes'?"),
        ("model.type=no.such:Model", "cannot be imported"),
        ("rewards=[{type: clpi}]", "reward 'clpi' is not known; did you mean 'clip'?"),
        ("monitors=[{type: motoin}]", "reward 'motoin' is not known; did you mean 'motion'?"),
        ("run.trackers=[tensorbord]", "run.trackers: there is no tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("optimizer.type=adam", "did you mean 'adamw'?"),
        ("policy.aggregation=reward", "did you mean 'rewards'?"),
        ("tuning.mode=lore", "did you mean 'lora'?"),
        ("policy.objective=grop", "policy.objective: there is no 'grop'; did you mean 'grpo'?"),
        ("policy.objective=nft", "policy.clip: the objective 'nft' has no 'clip'"),
        ("policy.objective_settings.clap=1", "the objective 'grpo' has no 'clap'; it has clip"),
    ],
)
def test_a_check_refuses_names_that_stand_for_nothing(wrong, words):
    checked = CliRunner().invoke(app, ["train", "lab", "--check", wrong])
    assert checked.exit_code == 2
    assert words in " ".join(checked.output.split())
    assert not checked.stdout


def test_what_only_looks_like_a_model_is_refused(tmp_path):
    class Likeness:
        module = torch.nn.Linear(1, 1)

    with pytest.raises(ConfigError, match=r"Likeness is no video model; write class Likeness\(VideoModel\)"):
        Trainer(Likeness(), [brightness], recipe(tmp_path), ["a"])


@pytest.mark.parametrize("where", [None, "runs/first/metrics.jsonl"])
def test_a_full_disk_is_told_without_a_trace(where, capsys):
    with pytest.raises(typer.Exit) as ended, user_errors():
        raise OSError(errno.ENOSPC, "No space left on device", where)
    assert ended.value.exit_code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("error: the disk is full")
    assert (where or "make room") in told
    with pytest.raises(PermissionError), user_errors():  # all others keep their trace
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_model_of_your_own_is_tuned_as_the_recipe_says(tmp_path):
    pytest.importorskip("peft")
    recipe = {"tuning": {"mode": "lora", "rank": 2}, "run": {"out": str(tmp_path)}}
    trainer = Trainer(model=ShapesModel.from_pretrained(), rewards=[lambda v, p: [0.0] * len(v)], config=recipe)
    trained = [name for name, p in trainer.model.module.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)


def test_an_ordinary_run_overlaps_scoring_and_knows_how_long_it_waited(tmp_path):
    """Nothing that watches a run may stand between the loop and a reward that works elsewhere."""
    log, waited = [], []

    class Elsewhere(Reward):
        names = ("elsewhere",)

        def submit(self, videos, prompts):
            log.append("begun")

            def ask():
                started = time.perf_counter()
                time.sleep(0.1)
                log.append("asked")
                values = videos.frames.double().flatten(1).mean(1, keepdim=True)
                waited.append(time.perf_counter() - started)
                return Scores(values, values.isfinite())

            return ask

        def score(self, videos, prompts):
            raise AssertionError("it was asked to begin only when its scores were needed")

    settings = recipe(tmp_path / "run", iterations=2, sample_every=0, hang_minutes=1)
    settings["policy"]["batch_size"] = 4
    trainer = Trainer(GaussianModel(), [Elsewhere()], settings, ["a", "b"], console=Console(quiet=True))
    decode = trainer.model.decode
    trainer.model.decode = lambda x0: (log.append("made"), decode(x0))[1]
    trainer.train()
    assert log == ["made", "begun", "made", "begun", "asked", "asked"] * 2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for row, spent in zip(rows, (sum(waited[:2]), sum(waited[2:])), strict=True):
        assert row["seconds/score"] == pytest.approx(spent, abs=0.05)


def test_kept_iterations_survive_a_resume(tmp_path):
    """Every third iteration stays, though `save_every` does not fall on it and `keep` is 1."""
    run = {"save_every": 2, "keep": 1, "keep_every": 3, "sample_every": 0}
    make(tmp_path / "run", iterations=5, **run).train()
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000005"]
    result = make(tmp_path / "run", iterations=8, **run).train()
    assert result.iterations == 8
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000006", "step-00000008"]
    kept = load_checkpoint(tmp_path / "run" / "checkpoints", "step-00000003")
    assert kept["loop"]["iteration"] == 3


def test_sample_videos_take_steps_of_their_own(tmp_path):
    """More steps give other videos from the same noise; rollouts keep theirs."""
    asked = {}
    for steps in (None, 9):
        trainer = make(tmp_path / f"run-{steps}", iterations=1, sample_every=1, sample_steps=steps)
        passes = asked[steps] = []
        trainer.model.module.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        trainer.train()
    assert len(asked[9]) - len(asked[None]) == 2 * (9 - 5)  # before the first iteration and after it
    first = [read_mp4(tmp_path / f"run-{steps}" / "samples" / "000000" / "00.mp4") for steps in (None, 9)]
    assert (first[0] != first[1]).any()


def test_a_model_of_one_size_refuses_another(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.sample_.*GaussianModel makes videos of one size; leave height out"):
        make(tmp_path / "run", sample_height=64)
