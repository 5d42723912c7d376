"""SAGE-GRPO: stable GRPO post-training for flow-matching video generators.

    from sage_grpo import Trainer

The names in `__all__` are the public interface. Each is imported when it is first used, so that `import sage_grpo`
alone does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Prompt",
    "RecipeConfig",
    "Reward",
    "Scores",
    "Trainer",
    "UserError",
    "VideoModel",
    "Videos",
    "__version__",
    "generate",
    "kernel",
    "kernel_table",
    "load_recipe",
    "model",
    "objective",
    "open_run",
    "reward",
    "sigma_schedule",
    "tracker",
]

_HOMES = {
    "ConfigError": "config",
    "Prompt": "core.protocols",
    "RecipeConfig": "config",
    "Reward": "core.reward",
    "Scores": "core.scores",
    "Trainer": "training.trainer",
    "UserError": "errors",
    "VideoModel": "core.video_model",
    "Videos": "core.protocols",
    "generate": "core.sampler",
    "kernel": "math.kernels",
    "kernel_table": "math.kernels",
    "load_recipe": "config",
    "model": "registry",
    "objective": "math.objectives",
    "open_run": "inference.reopen",
    "reward": "registry",
    "sigma_schedule": "math.schedule",
    "tracker": "runs.tracker",
}

if TYPE_CHECKING:
    from sage_grpo.config import ConfigError, RecipeConfig, load_recipe
    from sage_grpo.core.protocols import Prompt, Videos
    from sage_grpo.core.reward import Reward
    from sage_grpo.core.sampler import generate
    from sage_grpo.core.scores import Scores
    from sage_grpo.core.video_model import VideoModel
    from sage_grpo.errors import UserError
    from sage_grpo.inference.reopen import open_run
    from sage_grpo.math.kernels import kernel, kernel_table
    from sage_grpo.math.objectives import objective
    from sage_grpo.math.schedule import sigma_schedule
    from sage_grpo.registry import model, reward
    from sage_grpo.runs.tracker import tracker
    from sage_grpo.training.trainer import Trainer
else:  # unseen by type checkers: a wrong name must not become an object of any type

    def __getattr__(name):
        if name not in _HOMES:
            from sage_grpo.suggest import did_you_mean  # noqa: PLC0415

            raise AttributeError(f"sage_grpo has no {name!r}; {did_you_mean(name, __all__)}")
        globals()[name] = value = getattr(import_module(f"sage_grpo.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
