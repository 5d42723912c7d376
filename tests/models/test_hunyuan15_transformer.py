"""HunyuanVideo-1.5 without padding: no mask, no waiting for the device, one graph for all lengths, exact timesteps."""

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.models import contract
from sage_grpo.models.hunyuan15 import HunyuanVideo15, HunyuanVideo15ImageToVideo
from sage_grpo.models.ragged_text import COUNT
from sage_grpo.weights.prepare import compile_blocks, make_bank
from support import make_config, make_loop
from tiny_models import disturb, tiny_model

pytestmark = pytest.mark.slow

ADAPTERS = [HunyuanVideo15, HunyuanVideo15ImageToVideo]


def asking(model, prompts):
    x = keyed_noise(model.latent_shape(prompts[0]), [("unpadded", i) for i in range(len(prompts))], model.device)
    condition = model.encode(prompts)
    return lambda: model.velocity(x, torch.full((len(x),), 0.93712), condition)


def prompts_of(model, mixed):
    asked = contract.prompts_for(model)
    return asked if mixed else asked[:1] * 2


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_only_tokens_that_are_there_are_kept(adapter):
    model = tiny_model(adapter)
    plain, writing = contract.prompts_for(model)
    for prompt in (plain, writing):
        _, there, _, written = model.pipe.encode_prompt([prompt.text], device=model.device, dtype=model.dtype)
        found = model.encode([prompt] * 3)
        assert found["text"].shape[1] == there.sum() > 0
        assert found["glyphs"].shape[1] == written.sum()
        assert not [name for name in found if name.endswith(COUNT)]
    assert written.sum() > 0
    mixed = model.encode([plain, writing])
    assert mixed["text" + COUNT].tolist() == [model.encode([p])["text"].shape[1] for p in (plain, writing)]
    assert mixed["glyphs" + COUNT].tolist() == [0, written.sum()]


@pytest.mark.parametrize("mixed", [False, True], ids=["one text", "two texts"])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_a_kernel_without_masks_is_enough(adapter, mixed, monkeypatch):
    """`tuning.attention=flash` as diffusers dispatches it, with torch's flash kernel of the host for a GPU's."""
    seen = []

    def flash(q, k, v, **settings):
        seen.append(q.shape[:2])
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    monkeypatch.setattr(attention_dispatch, "flash_attn_func", flash)
    monkeypatch.setattr(attention_dispatch, "_check_attention_backend_requirements", lambda backend: None)
    monkeypatch.setattr(
        _AttentionBackendRegistry, "_active_backend", AttentionBackendName.NATIVE
    )  # put back at the end
    native = tiny_model(adapter, {"attention": "native"})
    fast = tiny_model(adapter, {"attention": "flash"})
    with torch.no_grad():
        expected, found = (asking(model, prompts_of(model, mixed))() for model in (native, fast))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    blocks = len(fast.shard_blocks)
    calls = [1, 1, 2] if mixed else [2, 2]  # both branches of the guidance; the negative text is the same for all
    assert [rows for rows, _ in seen] == calls * blocks


class NeverWaits(TorchDispatchMode):
    """What a host would have to wait for on a GPU: a value, or a shape that depends on values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
        ), func
        assert not (func.overloadpacket == torch.ops.aten.index and args[1][0].dtype == torch.bool), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mixed", [False, True], ids=["one text", "two texts"])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.__name__)
def test_no_pass_waits_for_the_device(adapter, mixed):
    model = tiny_model(adapter)
    ask = asking(model, prompts_of(model, mixed))
    with NeverWaits():
        ask().square().mean().backward()
    prompt = contract.prompts_for(model)[0]
    noise = keyed_noise(model.latent_shape(prompt), [("unpadded", 0)], model.device)
    with pytest.raises(AssertionError), NeverWaits():  # the library's own does
        contract.through_pipeline(model, prompt, noise, "latent", steps=1)


def test_blocks_are_compiled_once_for_all_lengths():
    torch._dynamo.reset()
    model = tiny_model(tuning={"gradient_checkpointing": True}, text_tokens=60, guidance_scale=1.0)
    plain = tiny_model(text_tokens=60, guidance_scale=1.0)
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    compile_blocks(model, backend)
    counts = []
    for length in (12, 17, 31, 40):
        v = asking(model, [Prompt("x" * length)])()
        v.square().mean().backward()
        torch.testing.assert_close(v, asking(plain, [Prompt("x" * length)])(), rtol=1e-4, atol=1e-5)
        counts.append(len(made))
    assert len(set(counts)) == 1, f"graphs after each length: {counts}"


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_texts_of_different_lengths_in_one_batch_pass_the_gate(mode):
    model = tiny_model(tuning={"mode": mode, "precision": "bfloat16", "gradient_checkpointing": True})
    policy = {"prompts_per_iteration": 2, "num_generations": 2, "batch_size": 4, "replay_timesteps": 2}
    config = make_config(policy=policy, sampling={"steps": 3})
    prompts = contract.prompts_for(model)
    loop, seen = make_loop(config, model=model, prompts=lambda start, count: prompts, bank=make_bank(model.module))
    loop.iterate()
    assert "text" + COUNT in seen.rollouts[0].trajectories[0].condition
    assert set(seen.updates[0].per_step["ratio"]) == {1.0}


def test_the_time_embedding_sees_the_exact_timestep():
    """In bfloat16 the library rounds 937.12 to 936: its neighbours are four apart."""
    model = disturb(tiny_model(tuning={"mode": "lora", "precision": "bfloat16"}))
    seen = []
    network = model.pipe.transformer
    for place in (network.time_embed, network.context_embedder.time_text_embed):
        place.time_proj.register_forward_hook(lambda module, inputs, out: seen.append((inputs[0], out)))
    with torch.no_grad():
        asking(model, prompts_of(model, mixed=False))()
    assert [len(timestep) for timestep, _ in seen] == [4, 2, 2]  # the video's; and the texts' of each branch
    for timestep, sinusoids in seen:
        assert timestep.tolist() == pytest.approx([937.12] * len(timestep), abs=1e-4)
        assert sinusoids.dtype == torch.float32
