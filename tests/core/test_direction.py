"""A model whose velocity leads from noise to data is refused before the first update."""

import pytest
import torch

from gaussian_model import GaussianModel
from sage_grpo.core.checks import BackwardVelocity, check_direction
from support import make_loop, objective_config, perturbed


class WrongSign(GaussianModel):
    def velocity(self, x, sigma, condition):
        return -super().velocity(x, sigma, condition)


class TellsTimeForNoise(GaussianModel):
    """As networks whose time runs from noise, 0, to data, 1."""

    def velocity(self, x, sigma, condition):
        return super().velocity(x, 1 - sigma, condition)


class Silent(GaussianModel):
    """As a network of random weights, whose answer has nothing to do with its input."""

    def velocity(self, x, sigma, condition):
        flat = x.flatten(1)
        return self.module(0 * flat, condition["mean"], sigma).view_as(x)


def test_the_right_way_round():
    model = GaussianModel()
    loop, seen = make_loop(model=model)
    loop.iterate()
    assert seen.updates
    # the exact velocity at pure noise is x - mean: the cosine is known
    path = loop.rollout().trajectories[0]
    noise, mean = next(iter(path.points.values())).noise.flatten(1), path.condition["mean"]
    expected = torch.cosine_similarity((noise - mean).flatten(), noise.flatten(), dim=0)
    assert check_direction(GaussianModel(), path) == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("wrong", [WrongSign, TellsTimeForNoise])
@pytest.mark.parametrize("objective", ["grpo", "nft"])
def test_the_wrong_way_round(wrong, objective):
    loop, seen = make_loop(objective_config(objective), model=wrong())
    with pytest.raises(BackwardVelocity, match=r"from noise to data.*-[01]\.\d\d.*flip its sign.*1 - sigma"):
        loop.iterate()
    assert not seen.updates


def test_random_weights_are_no_mistake():
    loop, _ = make_loop(model=perturbed(Silent(), 0.5))
    assert abs(check_direction(loop.model, loop.rollout().trajectories[0])) < 0.5
