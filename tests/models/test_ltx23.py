"""LTX-2.3 through the adapter of LTX-2: gates in attention, modulated attention to the text, a projection a part."""

from functools import partial

import pytest

pytest.importorskip("diffusers")

import diffusers as df

from sage_grpo.models import contract, ltx2

pytestmark = pytest.mark.slow

GATED = {
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "use_prompt_embeddings": False,
}
PROJECTED = {
    "video_connector_attention_head_dim": 16,
    "video_gated_attn": True,
    "audio_gated_attn": True,
    "per_modality_projections": True,
    "proj_bias": True,
    "video_hidden_dim": 32,
    "audio_hidden_dim": 16,
}


class Library:
    """diffusers, whose transformers have what came with LTX-2.3."""

    LTX2VideoTransformer3DModel = partial(df.LTX2VideoTransformer3DModel, **GATED)

    def __getattr__(self, name):
        return getattr(df, name)


@pytest.fixture
def checkpoint(monkeypatch, tmp_path):
    connectors = ltx2.LTX2TextConnectors
    monkeypatch.setattr(ltx2, "df", Library())
    monkeypatch.setattr(ltx2, "LTX2TextConnectors", lambda **sizes: connectors(**(sizes | PROJECTED)))
    return contract.make_checkpoint(ltx2.LTX2, tmp_path)


@pytest.mark.parametrize("guided", [True, False])
def test_it_keeps_the_whole_contract(checkpoint, guided):
    model = contract.load(ltx2.LTX2, checkpoint, guided=guided)
    assert model.pipe.transformer.transformer_blocks[0].attn1.to_gate_logits is not None  # or nothing new is tried
    for check in contract.CHECKS:
        check(contract.load(ltx2.LTX2, checkpoint, guided=guided))
