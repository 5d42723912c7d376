"""Settings are checked before anything is loaded, and say how to mend what is wrong."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from sage_grpo.config import AlgorithmConfig, KLConfig, PolicyConfig, SamplingConfig, WindowConfig
from sage_grpo.core.objectives import chosen_objective
from sage_grpo.math.objectives.grpo import Grpo


@pytest.mark.real_start
def test_config_imports_no_torch():
    code = "import sys, sage_grpo.config; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.real_start
def test_help_needs_no_torch():
    code = "import sys, sage_grpo.cli; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_defaults_are_the_references():
    config = AlgorithmConfig()
    assert (config.sampling.kernel, config.sampling.steps, config.sampling.shift) == ("sage", 20, 5.0)
    assert (config.policy.num_generations, config.policy.advantage_limit) == (4, 5.0)
    assert chosen_objective(config) == Grpo(clip=1e-4, advantage_limit=5.0, reduction="mean")
    assert (config.kl.ref_model_sync_steps, config.kl.anchor_weight, config.kl.old_weight) == (10, 1.0, 0.1)
    assert (config.kl.low, config.kl.high, config.kl.warmup) == (1e-7, 1e-5, 100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SamplingConfig(etta=1), "Extra inputs are not permitted"),
        (lambda: SamplingConfig(steps=10, window=WindowConfig(size=10)), "exceeds the 9 stochastic steps; use 9"),
        (lambda: SamplingConfig(steps=10, window=WindowConfig(size=4, start=6)), "use 0 to 5"),
        (lambda: SamplingConfig(steps=11, window=WindowConfig(size=6, range=(0, 0.5))), "exceeds the 5 stochastic"),
        (lambda: SamplingConfig(steps=11, window=WindowConfig(size=2, range=(0.5, 1), start=1)), "use 5 to 8"),
        (lambda: SamplingConfig(steps=3, window=WindowConfig(range=(0, 0.1))), "covers no step of 2; widen it"),
        (lambda: WindowConfig(range=(0.5, 0.2)), "two shares in rising order"),
        (lambda: WindowConfig(per="prompt", start="progressive"), "use start=random"),
        (
            lambda: AlgorithmConfig(
                sampling=SamplingConfig(window=WindowConfig(size=1, per="prompt")), policy=PolicyConfig(batch_size=3)
            ),
            "needs batches of one prompt",
        ),
        (lambda: KLConfig(feedback="lagrangian"), "needs a target above 0"),
        (lambda: KLConfig(low=1.0, high=0.1), "swap them"),
        (lambda: AlgorithmConfig(policy=PolicyConfig(num_minibatches=30)), "exceeds the 19 trained timesteps"),
        (lambda: PolicyConfig(num_generations=1), "greater than or equal to 2"),
        (lambda: SamplingConfig(eta=float("nan")), "finite number"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(ValidationError, match=message):
        make()


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        AlgorithmConfig().seed = 1
