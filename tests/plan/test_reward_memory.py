"""Scorers that share the GPU with the trainer are in the plan's memory, others are not."""

import pytest

pytest.importorskip("transformers")

from sage_grpo.config import RecipeConfig
from sage_grpo.preflight.plan.memory import reward_bytes

pytestmark = pytest.mark.slow

PICKSCORE = 3_940_000_000  # its weights in float32, 985 million of them


def scorer(**options):
    return {"type": "pickscore", "options": options}


@pytest.mark.parametrize("place", ["rewards", "monitors"])
@pytest.mark.parametrize(
    ("options", "size"),
    [({}, PICKSCORE), ({"device": "cuda"}, PICKSCORE), ({"device": "cuda:1"}, PICKSCORE), ({"device": "cpu"}, 0)],
)
def test_a_scorer_counts_where_it_runs(place, options, size):
    """Without `device` its weights go where the videos are."""
    assert reward_bytes(RecipeConfig(**{place: [scorer(**options)]})) == (size, ())


def test_scorers_add_up_and_those_that_do_not_say_are_named():
    config = RecipeConfig(rewards=[scorer(), scorer(device="cpu")], monitors=[scorer(), {"type": "theirs:score"}])
    assert reward_bytes(config) == (2 * PICKSCORE, ("theirs:score",))


def test_weights_of_ones_own_count_as_large_as_they_are(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(1234))
    config = RecipeConfig(rewards=[scorer(path=str(tmp_path)), scorer(path=str(tmp_path), device="cpu")])
    assert reward_bytes(config) == (1234, ())
