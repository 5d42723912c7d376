"""The drift gauge measures what it says, from closed forms, and rings when it should."""

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.config import GaugeConfig
from sage_grpo.core.protocols import Videos
from sage_grpo.preflight.plan.operations import OperationCounter
from sage_grpo.training.drift_gauge import DriftGauge, diversity, listen, look
from support import make_config, make_loop


def run(iterations=3, reward=None, **gauge):
    watcher = DriftGauge(GaugeConfig(every=1, **gauge))
    config = make_config(policy={"num_iterations": 2}, kl={"anchor": "none", "old_weight": 0})
    extra = {"reward": reward} if reward else {}
    loop, seen = make_loop(config, callbacks=[watcher], **extra)
    loop.callbacks = [watcher, seen]  # the gauge adds to the metrics before they are logged
    loop.optimizer.param_groups[0]["lr"] = 1e-2
    loop.run(iterations)
    return watcher, seen, loop


def test_starts_at_its_own_measure_and_sees_movement():
    _, seen, _ = run(6)
    first, last = seen.metrics[0], seen.metrics[-1]
    assert first["drift/kl_initial"] == 0
    for name in ("base_error", "diversity", "motion"):
        assert first[f"drift/{name}"] == 1
    assert last["drift/kl_initial"] > 0
    assert last["drift/base_error"] > 1


@pytest.mark.parametrize("start", ["random", "progressive"])
def test_rollouts_are_compared_with_those_of_the_same_window(start):
    """Without learning, ratios to another window's rollouts are far from 1: the gauge waits for its own."""
    window = {"size": 1, "start": start, "every": 1}
    config = make_config(sampling={"window": window, "shared_initial_noise": True}, policy={"num_iterations": 1})
    watcher = DriftGauge(GaugeConfig(every=2))
    loop, seen = make_loop(config, callbacks=[watcher])
    loop.callbacks = [watcher, seen]
    loop.optimizer.param_groups[0]["lr"] = 0.0
    loop.run(24)
    places = [loop.windows.starts(i)[0] for i in range(24)]
    measured = [i for i, metrics in enumerate(seen.metrics) if "drift/diversity" in metrics]
    assert len(measured) > 2
    assert {places[i] for i in measured} == {places[0]}
    own = [seen.metrics[i]["drift/diversity"] for i in measured]
    assert own == pytest.approx([1] * len(own), rel=0.5)
    again = DriftGauge(GaugeConfig(every=2))
    again.load_state_dict(watcher.state_dict())
    assert (again.place, again.due) == (watcher.place, watcher.due)


def test_a_gauge_of_an_older_checkpoint_goes_on():
    """It does not know its window."""
    watcher, seen, loop = run(2)
    older = DriftGauge(watcher.config)
    older.load_state_dict({"base": watcher.base, "alarms": []})
    loop.callbacks = [older, seen]
    loop.run(4)
    assert all("drift/diversity" in metrics for metrics in seen.metrics[2:])


def test_kl_is_measured_though_not_penalised_and_is_the_closed_form():
    _, seen, loop = run(2)
    trajectory, model = seen.rollouts[1].trajectories[0], GaussianModel()  # a fresh model is the initial policy
    values = []
    for step, taken in trajectory.points.items():
        sigma = taken.x.new_full((len(taken.x),), loop.table.sigma[step].item())
        with torch.no_grad():
            v0 = model.velocity(taken.x, sigma, trajectory.condition)
        b, s = loop.table.b[step], loop.table.s[step]
        new, old = (torch.distributions.Normal((b * v).double(), s) for v in (taken.velocity, v0))
        values.append(torch.distributions.kl_divergence(new, old).mean().item())
    assert seen.metrics[1]["drift/kl_initial"] == pytest.approx(sum(values) / len(values), rel=1e-5)


def test_measuring_does_not_touch_the_run():
    """Bit-equal weights with and without the gauge."""
    from support import weights

    _, _, watched = run(4)
    loop, _ = make_loop(make_config(policy={"num_iterations": 2}, kl={"anchor": "none", "old_weight": 0}))
    loop.optimizer.param_groups[0]["lr"] = 1e-2
    loop.run(4)
    assert torch.equal(weights(watched), weights(loop))


def test_diversity_is_the_mean_pair_distance():
    x = torch.randn(8, 3, 5)
    groups = x.flatten(1).view(2, 4, 15)
    pairs = [(groups[g, i] - groups[g, j]).norm() for g in range(2) for i in range(4) for j in range(4) if i < j]
    assert diversity(x, 4) == pytest.approx((sum(pairs) / len(pairs)).item() / 15**0.5, rel=1e-5)
    assert diversity(torch.ones(4, 3), 4) == 0


def test_look():
    white, black = torch.full((1, 4, 2, 2, 3), 255), torch.zeros(1, 4, 2, 2, 3)
    flicker = torch.cat([white[:, :1], black[:, :1]] * 2, 1).to(torch.uint8)
    assert look([flicker]) == {"saturation": 1.0, "exposure": 0.5, "motion": 1.0}
    assert look([torch.full((1, 4, 2, 2, 3), 128, dtype=torch.uint8)])["motion"] == 0


def test_listen():
    """Over all samples and channels; a batch without sound adds nothing, and none at all is no measure."""
    frames = torch.zeros(2, 1, 2, 2, 3, dtype=torch.uint8)
    wave = torch.tensor([[[0.0, 1.0, -1.0, 0.5]], [[0.0, 0.0, 0.0, 0.0]]])
    heard = [Videos(frames, 8.0, wave, 4), Videos(frames, 8.0)]
    assert listen(heard) == {"clipping": 2 / 8, "loudness": pytest.approx((2.25 / 8) ** 0.5)}
    assert listen(heard[1:]) == listen([]) == {}


def test_sound_that_is_clipped_or_falls_silent_rings():
    gauge = DriftGauge(GaugeConfig())
    gauge.base = {"clipping": 0.01, "loudness": 0.2}
    assert gauge.check(gauge.relative({"clipping": 0.02, "loudness": 0.15})) == []
    (loud,) = gauge.check(gauge.relative({"clipping": 0.3, "loudness": 0.6}))
    assert loud == "samples of the sound at full scale rose by +29% (limit 5%): it is clipped"
    (silent,) = gauge.check(gauge.relative({"clipping": 0.0, "loudness": 0.01}))
    assert silent == "the sound is ×0.05 as loud as at the start (limit 0.1): it falls silent"


def test_look_needs_room_for_frames_and_not_for_videos():
    batches = [torch.randint(0, 256, (2, 24, 16, 16, 3), dtype=torch.uint8) for _ in range(3)]
    with OperationCounter() as watch:
        found = look(batches)
    assert watch.peak < 4 * 4 * batches[0][:, 0].numel()  # four frames of a batch in float32
    videos = torch.cat(batches).double()
    assert found == pytest.approx(
        {
            "saturation": ((videos <= 2) | (videos >= 253)).double().mean().item(),
            "exposure": videos.mean().item() / 255,
            "motion": videos.diff(dim=1).abs().mean().item() / 255,
        },
        abs=1e-6,
    )
    shades = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16, 1)
    assert look([shades]) == pytest.approx({"saturation": 6 / 256, "exposure": 0.5, "motion": 0.0})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_error": 2.0}, "leave what it knows"),
        ({"diversity": 0.1}, "collapses"),
        ({"saturation": 0.4}, "saturation"),
        ({"exposure": -0.3}, "over- or under-exposure"),
        ({"motion": 0.1}, "stands still"),
        ({"kl_initial": 1.0}, "KL to the initial policy"),
    ],
)
def test_every_alarm_rings_alone(change, words):
    calm = {"base_error": 1.0, "diversity": 1.0, "saturation": 0.0, "exposure": 0.0, "motion": 1.0, "kl_initial": 0.0}
    gauge = DriftGauge(GaugeConfig(kl_initial=0.5))
    assert gauge.check(calm) == []
    (alarm,) = gauge.check(calm | change)
    assert words in alarm


def test_an_alarm_can_stop_the_run():
    watcher, seen, loop = run(20, action="stop", base_error=1.01)
    assert loop.stop_reason.startswith("drift gauge: the base model's error")
    assert len(seen.metrics) < 20
    assert watcher.alarms


def test_state_survives():
    watcher, _, _ = run(2)
    again = DriftGauge(GaugeConfig())
    again.load_state_dict(watcher.state_dict())
    assert again.base == watcher.base
