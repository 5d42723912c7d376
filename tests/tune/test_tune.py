"""A search without training: runs are stand-ins that write the curves of a known law."""

import json
import math
from pathlib import Path

import pytest
import torch

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.distributed.launch import ProcessFailure
from sage_grpo.tune import runs
from sage_grpo.tune import tune as search
from sage_grpo.tune.lock import locked
from sage_grpo.tune.tune import tune
from sage_grpo.tune.worker import RECIPE

BEST = 1e-3
TRIED = "optimizer.lr=" + ",".join(f"{BEST * 2.0**k:g}" for k in range(-4, 5))


class StandIn:
    """Rewards rise towards a height that is greatest at the best rate."""

    def __init__(self):
        self.calls, self.environments, self.failing = [], [], set()

    def __call__(self, processes, module, arguments, folder, look, *, environment=None, files=()):
        config = load_recipe(Path(folder) / RECIPE)
        rate, done = config.optimizer.lr, self.done(folder)
        self.calls.append((rate, done, config.run.iterations))
        self.environments.append(environment)
        if rate in self.failing:
            raise ProcessFailure("process 0 of 1: out of memory")
        height = 1 - 0.1 * abs(math.log2(rate / BEST))
        with (Path(folder) / "metrics.jsonl").open("a") as log:
            for step in range(done + 1, config.run.iterations + 1):
                row = {"step": step, "reward/mean": height * (1 - 0.9**step), "seconds/rollout": 0.5}
                log.write(json.dumps(row | {"seconds/score": 0.25, "seconds/update": 0.25, "kl/penalty": 0.1}) + "\n")
        (Path(folder) / "checkpoints").mkdir(exist_ok=True)
        (Path(folder) / "end.json").write_text("{}")

    @staticmethod
    def done(folder):
        log = Path(folder) / "metrics.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def iterations(self):
        return sum(until - done for _, done, until in self.calls)


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(runs, "launch", made)
    return made


def test_the_best_of_nine_at_a_quarter_of_the_grid(stand_in, tmp_path):
    found = tune("lab", ["run.iterations=90"], [TRIED], tmp_path)
    assert found.tried[0].name == f"optimizer.lr={BEST:g}"
    assert stand_in.iterations == 9 * 10 + 3 * 20 + 60
    assert found.passes / found.grid == pytest.approx(210 / 810)
    assert [len(row.rewards) for row in found.tried] == [3, 2, 2, *[1] * 6]
    assert load_recipe(found.recipe).optimizer.lr == BEST
    assert load_recipe(found.recipe).run.out == load_recipe("lab").run.out  # a recipe to run, not a run of the search
    assert json.loads((tmp_path / "tune.json").read_text())["tried"][0]["name"] == found.tried[0].name
    kept = [path.parent.name for path in tmp_path.glob("runs/*/checkpoints")]
    assert kept == [Path(found.tried[0].folder).name]  # those of runs that are out would fill the disk


def test_called_again_it_runs_nothing(stand_in, tmp_path):
    first = tune("lab", ["run.iterations=90"], [TRIED], tmp_path)
    before = len(stand_in.calls)
    assert tune("lab", ["run.iterations=90"], [TRIED], tmp_path) == first
    assert len(stand_in.calls) == before


def test_interrupted_it_continues(stand_in, tmp_path, monkeypatch):
    whole = tune("lab", ["run.iterations=90"], [TRIED], tmp_path / "whole")
    stand_in.calls.clear()

    def cut(*arguments, **more):
        if len(stand_in.calls) == 11:
            raise KeyboardInterrupt
        stand_in(*arguments, **more)

    monkeypatch.setattr(runs, "launch", cut)
    with pytest.raises(KeyboardInterrupt):
        tune("lab", ["run.iterations=90"], [TRIED], tmp_path / "cut")
    monkeypatch.setattr(runs, "launch", stand_in)
    again = tune("lab", ["run.iterations=90"], [TRIED], tmp_path / "cut")
    assert [row.name for row in again.tried] == [row.name for row in whole.tried]
    assert again.tried[0].rewards == whole.tried[0].rewards
    assert stand_in.iterations == 210


def test_a_candidate_that_fails_is_out_and_the_others_continue(stand_in, tmp_path):
    stand_in.failing = {BEST}
    found = tune("lab", ["run.iterations=90"], [TRIED], tmp_path)
    assert found.tried[0].name in {f"optimizer.lr={BEST * 2:g}", f"optimizer.lr={BEST / 2:g}"}
    failed = next(row for row in found.tried if row.failure)
    assert failed.name == f"optimizer.lr={BEST:g}"
    assert "out of memory" in failed.failure
    assert json.loads((tmp_path / "tune.json").read_text())["tried"][-1]["rewards"] == [None]


def test_if_all_fail_the_first_reason_is_told(stand_in, tmp_path):
    stand_in.failing = {1e-4, 1e-3}
    with pytest.raises(ConfigError, match=r"no candidate came to the end of its rung; .*out of memory"):
        tune("lab", [], ["optimizer.lr=1e-4,1e-3"], tmp_path)


def test_a_budget_in_passes(stand_in, tmp_path):
    full = tune("lab", ["run.iterations=90"], [TRIED], tmp_path / "full")
    half = tune("lab", ["run.iterations=90"], [TRIED], tmp_path / "half", passes=full.passes / 2)
    assert half.passes == pytest.approx(full.passes / 2, rel=0.02)


def test_a_budget_in_hours(stand_in, tmp_path):
    """An iteration of the stand-in takes a second."""
    found = tune("lab", ["run.iterations=90"], [TRIED], tmp_path, hours=105 / 3600)
    assert stand_in.iterations == pytest.approx(105, abs=5)
    stand_in.calls.clear()
    assert tune("lab", ["run.iterations=90"], [TRIED], tmp_path, hours=105 / 3600) == found
    assert not stand_in.calls


@pytest.mark.parametrize("budget", [{"passes": 10}, {"hours": 0}])
def test_too_small_a_budget_names_one_that_works(budget, stand_in, tmp_path):
    with pytest.raises(ConfigError, match=r"Give --passes \d+ or more") as told:
        tune("lab", [], [TRIED], tmp_path, **budget)
    enough = int(str(told.value).split("--passes ")[1].split()[0])
    assert tune("lab", [], [TRIED], tmp_path, passes=enough).tried


def test_candidates_of_another_cost_get_as_many_passes(stand_in, tmp_path):
    sizes = "policy.prompts_per_iteration=8,16"
    found = tune("lab", ["run.iterations=36"], [sizes], tmp_path)
    first = {row.name: row for row in found.tried}
    assert first["policy.prompts_per_iteration=8"].iterations / first["policy.prompts_per_iteration=16"].iterations in (
        pytest.approx(2 * 3, rel=0.1),
        pytest.approx(2 / 3, rel=0.1),
    )


def test_another_search_in_the_same_folder_is_refused(stand_in, tmp_path):
    tune("lab", ["run.iterations=90"], [TRIED], tmp_path)
    with pytest.raises(ConfigError, match="holds a search of another recipe or other candidates"):
        tune("lab", ["run.iterations=90"], ["kl.high=0.1,1"], tmp_path)


def test_two_searches_at_a_time_are_refused(tmp_path):
    with (
        locked(tmp_path, print),
        pytest.raises(ConfigError, match="another search is running"),
        locked(tmp_path, lambda text: None, patience=0.3),
    ):
        pass


@pytest.fixture
def eight_gpus(monkeypatch):
    monkeypatch.setattr(search, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.delenv(search.VISIBLE, raising=False)


def visible(workers, processes):
    config = load_recipe("lab", [f"parallel.processes={processes}", "policy.batch_size=1"])
    return [devices[search.VISIBLE] for devices in search.shared_devices(workers, config)]


def test_runs_at_a_time_have_gpus_of_their_own(eight_gpus, stand_in, tmp_path):
    assert visible(2, 4) == ["0,1,2,3", "4,5,6,7"]
    tune("lab", ["run.iterations=90"], [TRIED], tmp_path, workers=2)
    assert {environment[search.VISIBLE] for environment in stand_in.environments} <= {"0", "1"}


def test_gpus_are_those_that_the_search_was_given(eight_gpus, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setenv(search.VISIBLE, "4,5,6,7")
    assert visible(2, 2) == ["4,5", "6,7"]


@pytest.mark.parametrize(
    ("workers", "processes", "fix"), [(4, 4, "--workers 2"), (1, 64, "parallel.processes=8 or less")]
)
def test_too_few_gpus_are_told_before_anything_runs(eight_gpus, workers, processes, fix):
    with pytest.raises(ConfigError, match=fix):
        visible(workers, processes)


def test_without_gpus_runs_share_the_host(stand_in, tmp_path):
    tune("lab", ["run.iterations=90"], [TRIED], tmp_path, workers=2)
    assert stand_in.environments[0] == {}


def test_an_iteration_that_was_logged_and_not_saved_is_made_again(stand_in, tmp_path):
    first = tune("lab", ["run.iterations=90"], [TRIED], tmp_path)
    (Path(first.tried[0].folder) / "end.json").unlink()  # as a kill between log and checkpoint leaves it
    stand_in.calls.clear()
    assert tune("lab", ["run.iterations=90"], [TRIED], tmp_path) == first
    assert [rate for rate, _, _ in stand_in.calls] == [BEST]
