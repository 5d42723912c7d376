"""Decoding HunyuanVideo-1.5 in tiles: no convolution too large for 32-bit kernels, and nearly the same picture."""

from types import SimpleNamespace

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import diffusers as df
import torch

from sage_grpo.config import load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.preflight.plan.operations import OperationCounter
from sage_grpo.preflight.plan.show import INDEXED, warnings
from tiny_models import tiny_model

pytestmark = pytest.mark.slow

SIZES = {(81, 352, 624): 1.10, (121, 480, 848): 3.00}  # the largest convolution of a video decoded at once, in 2³¹


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("hunyuan15")])
def test_recipes_decode_in_tiles(name):
    assert load_recipe(name).tuning.vae_tiling


@pytest.mark.parametrize(("size", "at_once"), SIZES.items())
def test_no_convolution_of_a_tile_is_too_large(size, at_once):
    """The real decoder's own tiles, without values."""
    with torch.device("meta"):
        vae = df.AutoencoderKLHunyuanVideo15().eval()
    frames, height, width = size
    z, tiles = torch.empty(1, 32, (frames - 1) // 4 + 1, height // 16, width // 16, device="meta"), []
    decoder = vae.decoder.forward
    vae.decoder.forward = lambda tile: (
        tiles.append(tile) or tile.new_empty(1, 3, frames, *(16 * n for n in tile.shape[3:]))
    )
    vae.enable_tiling()
    vae.blend_h = vae.blend_v = lambda before, tile, extent: tile
    with torch.no_grad():
        assert vae.decode(z, return_dict=False)[0].shape == (1, 3, frames, height, width)
        largest = max(tiles, key=torch.numel)
        with OperationCounter() as watch:
            decoder(largest)
    print(f"{size}: {len(tiles)} tiles, the largest convolution {watch.largest / INDEXED:.2f} × 2³¹")
    assert watch.largest < INDEXED / 2
    whole = z[0, 0, 0].numel() / largest[0, 0, 0].numel()
    assert watch.largest / INDEXED * whole == pytest.approx(at_once, rel=0.02)  # they grow with the area


def test_a_plan_warns_of_a_convolution_that_is_too_large():
    assert warnings(SimpleNamespace(convolution=INDEXED)) == []
    (said,) = warnings(SimpleNamespace(convolution=3 * INDEXED))
    assert "3.00 × 2^31" in said
    assert "use tuning.vae_tiling=true" in said


def test_tiles_give_nearly_the_same_picture():
    """Tiles of the real size. The tiny decoder has random weights, to which a border means more than to a trained one:
    most differs where tiles are blended, and none of a corner if its attention over all pixels is taken away."""
    model = tiny_model(frames=1, height=64, width=448)
    x = keyed_noise(model.latent_shape(Prompt("")), [("tiles", 0)], model.device)

    def off():
        pictures = []
        for model.pipe.vae.use_tiling in (False, True):
            pictures.append(model.decode(x).float())
        return (pictures[0] - pictures[1]).abs()

    found = off()
    share = (found > 8).float().mean()
    print(f"mean {found.mean():.1f}, largest {found.max():.0f} of 255 levels, {share:.0%} of pixels off by more than 8")
    assert 0 < found.mean() < 5
    assert share < 0.15
    for block in model.pipe.vae.decoder.mid_block.attentions:
        block.forward = lambda x: x
    assert off()[..., :96, :].max() <= 1
