"""Compiled blocks with guidance, over prompts of many lengths: the same numbers, and a bounded number of graphs."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.models.hunyuan15 import HunyuanVideo15
from sage_grpo.models.qwen_image import QwenImage
from sage_grpo.models.wan import Wan
from sweeps import further
from tiny_models import disturb, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOST = 10


def graphs(model):
    """How many each class of blocks was compiled into."""
    compiled = {type(layer) for layer in model.module.modules() if layer._compiled_call_impl is not None}
    return {kind.__name__: len(_debug_get_cache_entry_list(kind.forward.__code__)) for kind in compiled}


def batches(count):
    """Pairs of one prompt, shorter and longer than the negative one and as long; every fifth pair is of two prompts."""
    texts = ["x" * (1 + 7 * i % count + 20 * (i % 3)) for i in range(count - 1)] + ["blurry"]
    return [[Prompt(text), Prompt(texts[i - 1] if i % 5 == 4 else text)] for i, text in enumerate(texts)]


def velocity(model, prompts):
    x = keyed_noise(model.latent_shape(prompts[0]), [("graphs", i) for i in range(len(prompts))], model.device)
    return model.velocity(x, torch.full((len(x),), 0.7), model.encode(prompts))


@pytest.mark.parametrize(
    ("adapter", "mode", "backend"),
    [
        (HunyuanVideo15, "lora", "eager"),
        further(HunyuanVideo15, "lora", "aot_eager"),
        further(HunyuanVideo15, "full", "aot_eager"),
        further(QwenImage, "lora", "aot_eager"),
        further(QwenImage, "full", "aot_eager"),
        further(Wan, "lora", "aot_eager"),
        further(Wan, "full", "aot_eager"),
    ],
)
def test_twenty_prompts_with_guidance_share_a_few_graphs(adapter, mode, backend):
    torch._dynamo.reset()
    tuning = {"mode": mode, "gradient_checkpointing": True}
    plain = disturb(tiny_model(adapter, tuning, text_tokens=200))
    model = disturb(tiny_model(adapter, tuning | {"compile": backend}, text_tokens=200))
    assert model.branches_together
    assert model.guided
    for prompts in batches(20):
        with torch.no_grad():
            rolled_out = velocity(model, prompts)
        found, expected = velocity(model, prompts), velocity(plain, prompts)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rolled_out, expected, rtol=1e-4, atol=1e-5)
        for v in (found, expected):
            v.square().mean().backward()
    for one, other in zip(model.module.parameters(), plain.module.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)
    print(f"{adapter.__name__} {mode} {backend}: graphs by class {graphs(model)}")
    assert max(graphs(model).values()) <= MOST
