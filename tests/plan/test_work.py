"""Tokens, FLOPs and depth: the plan against torch's own counter, a count by hand and a network with all its blocks."""

import pytest

pytest.importorskip("diffusers")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sage_grpo.config import load_recipe
from sage_grpo.core.protocols import Prompt
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.preflight.plan import probe as probing
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.estimate import alone, estimate
from sage_grpo.preflight.plan.fake_tensors import imagine_weights, without_values
from sage_grpo.preflight.plan.hardware import find_gpu
from sage_grpo.preflight.plan.probe import passes, probe
from sage_grpo.training import build
from sweeps import further

pytestmark = pytest.mark.slow

SIZES = {(352, 624): (18_018, 248), (480, 848): (33_390, 685), (720, 1280): (75_600, 2_961)}
FIRST, *OTHERS = SIZES.items()
PADDING = 1000 + 256 + 729  # tokens of text, glyphs and image, up to which the library fills


def single(height, width, frames=81):
    size = [f"model.height={height}", f"model.width={width}", f"model.frames={frames}"]
    return alone(load_recipe("hunyuan15-64gpu", size), unguided=True)


def by_hand(tokens, text):
    """54 blocks of width 2048: projections 4·d² and feed-forward 8·d² of every token, attention of all on all."""
    width, blocks, all_tokens = 2048, 54, tokens + text
    return (2 * 12 * width**2 * all_tokens + 4 * width * all_tokens**2) * blocks / 1e12


@pytest.mark.parametrize(("size", "expected"), [FIRST, *(further(*other) for other in OTHERS)])
def test_tokens_and_flops_of_hunyuanvideo(size, expected):
    tokens, rough = expected
    found = probe(single(*size))
    tflop = found.forward.flops / 1e12
    assert found.tokens == tokens
    assert tflop == pytest.approx(by_hand(tokens, HunyuanVideo15.typical_text), rel=0.005)
    assert tflop == pytest.approx(rough, rel=0.01)
    print(f"{size}: {tflop:.1f} TFLOP; with padding {by_hand(tokens, PADDING):.1f}")


def test_flops_and_messages_of_an_iteration_are_those_counted_by_hand():
    """HunyuanVideo-1.5, all weights on 64 GPUs, pairs share a video of 18,018 tokens; 20 steps, 19 are trained."""
    plan = estimate(
        load_recipe("hunyuan15-64gpu", ["gauge.every=0", "run.sample_every=0"]), find_gpu("h100-80g"), Calibration()
    )
    anchor = 19 * 0.9  # an update that begins with a renewal does not evaluate it
    rounds, trained = 20 + anchor, 19  # passes without and with a gradient; both branches of a batch in one pass
    videos, branches, weights = plan.config.policy.batch_size, 2, 8.29e9
    text, width = HunyuanVideo15.typical_text, 2048
    matrices = 54 * 2 * 12 * width**2 * (18_018 + 2 * text)  # both processes of a pair compute the text
    attention = 54 * 4 * width * (18_018 + text) ** 2
    # a trained pass: forward, again, and backward, which is two more for matrices and two and a half for attention
    flops = 64 * branches * ((rounds + 4 * trained) * matrices + (rounds + 4.5 * trained) * attention)
    # in each of 54 blocks: query, key, value and result of a process's half of the tokens, 2,048 wide, in bf16
    tokens = 54 * 4 * videos * branches * 18_018 / 2 * 2048 * 2
    found = {name: plan.moved[name] for name in ("weights", "gradients", "tokens")}
    print(plan.flops / flops, found["tokens"] / (tokens * (rounds + 3 * trained)))
    assert plan.flops == pytest.approx(flops, rel=0.02)  # decoding takes a hundredth more
    assert found["weights"] == pytest.approx(2 * weights * (rounds + 2 * trained), rel=0.03)  # bf16, again for backward
    assert found["gradients"] == pytest.approx(4 * weights * trained, rel=0.01)  # in float32
    assert found["tokens"] == pytest.approx(tokens * (rounds + 3 * trained), rel=0.02)


def test_cutting_padding_saves_a_tenth():
    """Of a pass at 352×624, by torch's counter: prompts of the usual length against all that the library fills up."""
    model = build.outline_model(single(352, 624))
    network, config = model.pipe.transformer, model.pipe.transformer.config

    def tflop(text, glyphs, image):
        words = {
            "text": torch.zeros(1, text, config.text_embed_dim),
            "glyphs": torch.zeros(1, glyphs, config.text_embed_2_dim),
            "image": torch.zeros(1, image, config.image_embed_dim),
        }
        x = torch.zeros(1, *model.latent_shape(Prompt("")))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            network(torch.cat([x, x, x[:, :1]], 1), x.new_ones(1), words=words)
        return counter.get_total_flops() / 1e12

    with without_values(), torch.no_grad():
        imagine_weights(model.module)
        cut, filled = tflop(model.typical_text, 0, 0), tflop(1000, 256, 729)
    print(f"{filled:.1f} TFLOP with padding, {cut:.1f} without: {cut / filled - 1:.1%}")
    assert cut <= 0.9 * filled


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        ("hunyuan15-64gpu", 18_018),
        further("ltx2-8gpu-lora", 6_144),
        further("qwen-image-1gpu-lora", 1_024),
        further("z-image-24gb-lora", 1_024),
    ],
)
def test_flops_are_those_of_torchs_counter_with_all_blocks(recipe, tokens):
    config = alone(load_recipe(recipe), unguided=True)
    model = build.outline_model(config)
    with without_values(), torch.no_grad():
        imagine_weights(model.module)
        x = torch.zeros(1, *model.latent_shape(Prompt("")))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it does not know the host's own
            model.velocity(x, x.new_ones(1), model.blank_condition(1))
    counted, found = counter.get_total_flops(), probe(config)
    print(f"torch {counted / 1e12:.2f}, plan {found.forward.flops / 1e12:.2f} TFLOP")
    assert found.tokens == tokens
    assert found.forward.flops == pytest.approx(counted, rel=0.03)


def test_a_deep_network_lies_on_the_line_of_two_shallow_ones(monkeypatch):
    """HunyuanVideo's own blocks, eight of them, on two processes that share a video."""
    config = load_recipe(
        "hunyuan15-64gpu",
        ["parallel.processes=4", "policy.prompts_per_iteration=1", "policy.batch_size=2", "model.guidance_scale=1"],
    )
    _, forward, training = passes(build.outline_model(config), config, 8)
    shallow = [passes(build.outline_model(config), config, depth)[1:] for depth in probing.SHALLOW]
    for real, few, more in zip((forward, training), *shallow, strict=True):
        line = probing.line(few, more, 8)
        assert line.flops == pytest.approx(real.flops, rel=1e-6)
        assert line.memory == pytest.approx(real.memory, rel=0.01)
        for purpose, size in real.sent.items():
            assert line.sent[purpose] == pytest.approx(size, rel=1e-3)


def test_backward_passes_of_full_weights_and_adapters():
    """A backward pass is twice a forward pass; adapters need no gradient of frozen weights; recomputing adds one."""
    size = ["model.guidance_scale=1", "parallel.processes=1", "parallel.sequence=1", "policy.batch_size=1"]
    ratio, attention = {}, {}
    for mode, again, kept in (
        ("full", False, False),
        ("full", True, False),
        ("full", True, True),
        ("lora", False, False),
    ):
        settings = [*size, f"tuning.mode={mode}", f"tuning.gradient_checkpointing={again}", "model.height=128"]
        settings.append(f"tuning.keep_attention={kept}")
        config = load_recipe("hunyuan15-64gpu", [*settings, "model.width=128"])
        _, forward, training = passes(build.outline_model(config), config, 4)
        ratio[mode, again + kept] = training.flops / forward.flops
        attention[mode, again + kept] = training.flops_of("attention") / forward.flops_of("attention")
    assert attention["full", 1] - attention["full", 0] == pytest.approx(1.0, abs=0.02)  # text's own blocks are not
    assert attention["full", 2] == pytest.approx(attention["full", 0])  # kept, so not computed again
    share = forward.flops_of("attention") / forward.flops
    assert ratio["full", 1] - ratio["full", 2] == pytest.approx(share, rel=0.03)
    assert ratio["full", 0] == pytest.approx(3.0, abs=0.1)
    assert ratio["full", 1] == pytest.approx(3.9, abs=0.15)  # recomputed are the blocks alone
    assert ratio["lora", 0] == pytest.approx(2.1, abs=0.15)
