"""Every built-in model and reward is named where it is defined, and found there."""

import inspect
import pkgutil
from importlib import import_module

import pytest

for library in ("diffusers", "transformers", "rapidocr_onnxruntime", "ray"):
    pytest.importorskip(library)

import sage_grpo.lab
import sage_grpo.models
import sage_grpo.rewards
from sage_grpo import registry
from sage_grpo.config import ConfigError
from sage_grpo.core.reward import Reward
from sage_grpo.core.video_model import VideoModel

pytestmark = pytest.mark.slow

# made of others, from a user's function or as a base of others
NAMELESS = {"CompositeReward", "FunctionReward", "LabModel"}  # and those that something must be added to


def defined(base):
    """Classes of our rooms that are a kind of `base`."""
    found = {}
    for room in (sage_grpo.models, sage_grpo.rewards, sage_grpo.lab):
        for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            module = import_module(info.name)
            own = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == info.name]
            found |= {x.__name__: x for x in own if issubclass(x, base) and not inspect.isabstract(x)}
    return found


@pytest.mark.parametrize(
    ("base", "known", "resolve"),
    [
        (VideoModel, registry.models, registry.resolve_model),
        (Reward, registry.rewards, registry.resolve_reward),
    ],
)
def test_every_class_has_a_name_and_every_name_a_class(base, known, resolve):
    classes = defined(base)
    assert set(classes) - NAMELESS == {entry.attribute for entry in known().values()}
    for name, entry in known().items():
        assert resolve(name) is classes[entry.attribute]


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"model 'wann' is not known; did you mean 'wan'\?"):
        registry.resolve_model("wann")
    with pytest.raises(ConfigError, match="cannot be imported"):
        registry.resolve_reward("no.such.module:thing")


class Unfinished(VideoModel):
    def latent_shape(self, prompt):
        return (1,)


def test_a_class_that_lacks_something_says_what_before_anything_is_loaded():
    with pytest.raises(ConfigError, match=r"is incomplete; define decode, encode, save_pretrained, velocity$"):
        registry.resolve_model(f"{__name__}:Unfinished")


def test_an_extra_is_one_of_ours():
    for entry in (*registry.models().values(), *registry.rewards().values()):
        if entry.extra:
            assert registry.packages_of(entry.extra), entry
            assert entry.missing is None
