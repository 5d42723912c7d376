"""A real fleet on Ray Serve: it scores as the same scorers do in-process, and its faults reach no advantage."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("urllib3")

import torch

from rewards.test_client import free_port
from sage_grpo.config import ConfigError, FleetConfig, RewardConfig, ScorerConfig, load_fleet
from sage_grpo.core.protocols import Prompt
from sage_grpo.rewards.contract import material
from sage_grpo.rewards.function import CompositeReward
from sage_grpo.rewards.remote.http import HttpReward
from sage_grpo.serve import fleet
from sage_grpo.training.build import build_reward
from serve import chaos
from serve.faults import truth

pytestmark = [pytest.mark.slow, pytest.mark.real_start]


@pytest.fixture(scope="module")
def running():
    with chaos.running_fleet(free_port()) as found:
        yield found


def test_the_fleet_gives_each_video_its_own_scores(running):
    url, _ = running
    reward = HttpReward(url, videos_per_request=3)
    videos = torch.randint(0, 256, (20, 2, 8, 8, 3), dtype=torch.uint8)
    prompts = [Prompt("x" * i) for i in range(20)]
    scores = reward.score(videos, prompts)
    assert torch.equal(scores.values, truth(videos, prompts))
    assert scores.valid.all()


@pytest.mark.parametrize(("address", "sentence"), [(None, "does not start on this machine"), ("auto", "at auto")])
def test_a_ray_that_fails_is_a_sentence(address, sentence, monkeypatch):
    calls = []

    def broken(**_):
        calls.append(1)
        raise Exception("The current node timed out during startup.\nmore\nmore")

    monkeypatch.setattr(fleet.ray, "init", broken)
    monkeypatch.setenv("SAGE_GRPO_TOKEN", "secret")
    with pytest.raises(fleet.FleetError, match=f"{sentence}.*timed out during startup.; ") as caught:
        fleet.start(FleetConfig(scorers=(ScorerConfig(type="motion"),), port=free_port()), address)
    assert "\n" not in str(caught.value)
    assert len(calls) == (1 if address else 3)


def test_a_ray_that_comes_late_is_tried_again(monkeypatch):
    """Ray gives its processes 30 seconds, which a busy machine does not keep: the command ended with that sentence."""
    late, ended = [Exception("The current node timed out during startup.") for _ in range(2)], []

    class Started:
        def __init__(self):
            if late:
                raise late.pop()

        def kill_all_processes(self, **_):
            ended.append(1)

    monkeypatch.setattr(fleet.ray, "init", lambda **_: Started())
    monkeypatch.setattr(fleet.ray, "shutdown", lambda: pytest.fail("a Ray that works was ended"))
    fleet.start_ray(None)
    assert len(ended) == 2  # what came up of each try
    late.append(Exception("no such thing\nmore"))
    with pytest.raises(fleet.FleetError, match="does not start on this machine: no such thing;"):
        fleet.start_ray(None)


def test_a_proxy_that_comes_late_is_waited_for(monkeypatch):
    """Ray gives a proxy five seconds, which a busy machine does not keep: the command ended with a stack trace."""
    late = [fleet.RayActorError(), TimeoutError("HTTP proxies not available after 60s.\nmore")]
    calls = []

    def start(**options):
        calls.append(options)
        if late:
            raise late.pop()

    monkeypatch.setattr(fleet.serve, "start", start)
    config = FleetConfig(scorers=(ScorerConfig(type="motion"),), port=free_port())
    fleet.start_proxies(config, everywhere=False, logging_config={})
    assert [call["proxy_location"] for call in calls] == ["HeadOnly"] * 3
    late.extend(TimeoutError("HTTP proxies not available after 60s.\nmore") for _ in range(9))
    with pytest.raises(fleet.FleetError, match="after 3 tries: HTTP proxies not available") as caught:
        fleet.start_proxies(config, everywhere=True, logging_config={})
    assert "\n" not in str(caught.value)


def test_rays_processes_know_how_long_a_proxy_may_take(running):
    @fleet.ray.remote
    def patience():
        from ray.serve._private import constants

        return constants.PROXY_READY_CHECK_TIMEOUT_S

    assert fleet.ray.get(patience.remote()) == float(fleet.PATIENCE)


@pytest.mark.parametrize("kind", chaos.KINDS)
def test_faults(kind, running):
    """The command with 100 of each: `make fleet-chaos FAULTS=100`."""
    found = chaos.run(*running, faults=2, kinds=[kind])
    print(kind, found[kind])


def test_above_the_stated_rate_a_run_ends_with_a_sentence(running):
    assert "at most 50% may (policy.max_failed_rewards)" in chaos.check_failure_rate(running[0])


def test_the_command_serves_what_its_file_names(tmp_path):
    port = free_port()
    (tmp_path / "rewards.yaml").write_text(
        f"port: {port}\nscorers: [{{type: motion, cpus: 0.5}}, {{type: sharpness, cpus: 0.5, max_replicas: 2}}]"
    )
    command = [sys.executable, "-m", "sage_grpo", "serve", "rewards.yaml", "--json"]
    environment = os.environ | {"SAGE_GRPO_TOKEN": "secret"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = json.loads(process.stdout.readline())
            os.environ["SAGE_GRPO_TOKEN"] = "secret"
            reward, videos = HttpReward(told["url"]), material()
            alone = CompositeReward([build_reward(RewardConfig(type=name)) for name in ("motion", "sharpness")])
            assert reward.names == alone.names
            assert reward.frame_indices(5) is None  # all: of the two, motion needs every frame
            here, there = alone.score(*videos), reward.score(*videos)
            assert torch.equal(here.valid, there.valid)
            assert torch.equal(here.values[here.valid], there.values[there.valid])
        finally:
            os.environ["SAGE_GRPO_TOKEN"] = chaos.TOKEN
            process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert told["replicas"] == {"motion": 1, "sharpness": 1, "gate": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scorers: [{type: motoin}]", "did you mean 'motion'"),
        ("scorers: [{type: motion, option: {}}]", "did you mean scorers.0.options"),
        ("scorers: [{type: motion, options: {lo: 1}}]", "has no option 'lo'"),
        ("scorers: [{type: motion, replicas: 3, max_replicas: 2}]", "swap them"),
        ("scorers: [{type: motion}, {type: motion}]", "stands twice"),
        ("scorers: []", "at least 1"),
        ("- 1", "YAML mapping such as"),
    ],
)
def test_mistakes_are_found_before_anything_starts(text, message, tmp_path, monkeypatch):
    monkeypatch.setenv("SAGE_GRPO_TOKEN", "secret")
    path = tmp_path / "rewards.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        fleet.check(load_fleet(path))


def test_the_documentation_names_every_key():
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    for schema in (FleetConfig, ScorerConfig):
        for name in set(schema.model_fields) - {"scorers"}:
            assert f"`{name}`" in page, f"docs/fleet.md does not say what {name} is"


def test_a_fleet_needs_a_token_and_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("SAGE_GRPO_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"SAGE_GRPO_TOKEN is not set.*export"):
        fleet.check(FleetConfig(scorers=[{"type": "motion"}]))
    (tmp_path / "fleet.yaml").write_text("scorers: []")
    with pytest.raises(ConfigError, match=r"there is no file .*fleet\.yaml"):
        load_fleet(tmp_path / "rewards.yaml")


def test_a_port_that_is_taken_is_told(running, monkeypatch):
    monkeypatch.setenv("SAGE_GRPO_TOKEN", "secret")
    port = int(running[0].rsplit(":", 1)[1])
    with pytest.raises(fleet.FleetError, match=rf"127.0.0.1:{port} cannot be used .*give another port"):
        fleet.start(FleetConfig(scorers=[{"type": "motion"}], port=port))


def test_a_scorer_that_cannot_be_made_is_told_in_its_own_words(monkeypatch):
    lines = ["Error:", "RuntimeError: Traceback (most recent call last):", "  File x", "sage_grpo.errors.Missing: no w"]
    trace = "\n".join(lines)
    states = {
        "gate": SimpleNamespace(status="HEALTHY", message=""),
        "videoalign": SimpleNamespace(status="DEPLOY_FAILED", message=trace),
    }
    applications = {fleet.APPLICATION: SimpleNamespace(deployments=states)}
    monkeypatch.setattr(fleet.serve, "status", lambda: SimpleNamespace(applications=applications))
    assert fleet._last_words() == "videoalign: no w"


def test_what_the_machine_does_not_have_is_told(running):
    wanted = FleetConfig(scorers=[{"type": "motion", "gpus": 64, "cpus": 0}])
    with pytest.raises(fleet.FleetError, match=r"want 64 GPUs and the cluster has \d"):
        fleet.check_room(wanted)


def test_a_replica_that_keeps_failing_is_replaced(running):
    url, notes = running
    before = set(os.listdir(notes))
    reward = HttpReward(url, retries=0)
    bad = [Prompt("x", {"fault": "raise"})] * 2
    end = time.monotonic() + 90
    while {n for n in set(os.listdir(notes)) - before if n.startswith("pid-")} == set():
        assert time.monotonic() < end, "nobody replaced it"
        reward.score(torch.zeros(2, 1, 4, 4, 3, dtype=torch.uint8), bad)
