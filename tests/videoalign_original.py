"""VideoAlign as it was released, at toy size, and what the original computes from it.

Names and shapes are written out here, and the scores come from transformers' own class with peft's adapters left
unmerged: nothing is shared with what is tested.
"""

import json

import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch.nn import functional as F

RUBRIC = (
    "\nRate this video.\nVisual: <|VQ_reward|>\nEND\nMotion: <|MQ_reward|>\nEND\n"
    "Textual prompt - {text_prompt}\nText: <|TA_reward|>\nEND\n"
)
REWARDS = ["<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
NORM = {"VQ_mean": 3.6757, "VQ_std": 2.2476, "MQ_mean": 1.1646, "MQ_std": 1.3811, "TA_mean": 2.8105, "TA_std": 2.5121}
HIDDEN, LAYERS, RANK, ALPHA, VISION = 64, 2, 4, 8, 32
VOCABULARY = len(SPECIAL) + 256 + len(REWARDS)
LINEAR = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}


def config():
    return hf.Qwen2VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 2, "embed_dim": VISION, "hidden_size": HIDDEN, "num_heads": 2, "mlp_ratio": 2},
        video_token_id=SPECIAL.index("<|video_pad|>"),
        vision_start_token_id=3,
        vision_end_token_id=4,
    )


def tokenizer():
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = hf.Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate(words)},
        merges=[],
        unk_token=SPECIAL[0],
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=SPECIAL[1:],
    )
    made.add_special_tokens({"additional_special_tokens": [*SPECIAL[1:], *REWARDS]})
    return made


def weights(output_dim, seed=0):
    """All tensors of `model.pth`, by their names in the released file."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape, std=None):
        return torch.randn(shape, generator=g) * (std if std is not None else shape[-1] ** -0.5)

    def norm(width):
        return 1 + normal(width, std=0.1)

    top = "base_model.model."
    state = {f"{top}visual.patch_embed.proj.weight": normal(VISION, 3, 2, 14, 14, std=0.03)}
    for i in range(2):
        block = f"{top}visual.blocks.{i}."
        for name, shape in {
            "attn.qkv": (96, 32),
            "attn.proj": (32, 32),
            "mlp.fc1": (64, 32),
            "mlp.fc2": (32, 64),
        }.items():
            state |= {f"{block}{name}.weight": normal(*shape), f"{block}{name}.bias": normal(shape[0], std=0.1)}
        for name in ("norm1", "norm2"):
            state |= {f"{block}{name}.weight": norm(VISION), f"{block}{name}.bias": normal(VISION, std=0.1)}
    merger = f"{top}visual.merger."
    state |= {f"{merger}ln_q.weight": norm(VISION), f"{merger}ln_q.bias": normal(VISION, std=0.1)}
    for name, shape in {"mlp.0": (128, 128), "mlp.2": (64, 128)}.items():
        state |= {f"{merger}{name}.weight": normal(*shape), f"{merger}{name}.bias": normal(shape[0], std=0.1)}
    state[f"{top}model.embed_tokens.weight"] = normal(VOCABULARY, HIDDEN, std=1.0)
    for i in range(LAYERS):
        layer = f"{top}model.layers.{i}."
        for name, (rows, columns) in LINEAR.items():
            state[f"{layer}{name}.base_layer.weight"] = normal(rows, columns)
            if name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                state[f"{layer}{name}.base_layer.bias"] = normal(rows, std=0.1)
            state[f"{layer}{name}.lora_A.default.weight"] = normal(RANK, columns)
            state[f"{layer}{name}.lora_B.default.weight"] = normal(rows, RANK, std=0.1)
        state |= {
            f"{layer}input_layernorm.weight": norm(HIDDEN),
            f"{layer}post_attention_layernorm.weight": norm(HIDDEN),
        }
    state[f"{top}model.norm.weight"] = norm(HIDDEN)
    state[f"{top}lm_head.weight"] = normal(VOCABULARY, HIDDEN)
    state[f"{top}rm_head.weight"] = normal(output_dim, HIDDEN, std=0.5)
    return state


def release(folder, state, layout="full"):
    """Write `state` as VideoAlign's trainer does; returns what `convert` needs besides."""
    place = folder / "checkpoints" / "VideoReward"
    step = place / "checkpoint-11352"
    step.mkdir(parents=True)
    (place / "checkpoint-900").mkdir()  # an older one, left empty
    settings = {
        "data_config": {
            "meta_data": "x.csv",
            "data_dir": "x",
            "fps": 2.0,
            "num_frames": None,
            "max_frame_pixels": 200704,
            "sample_type": "uniform",
            "eval_dim": ["VQ", "MQ", "TA"],
            "prompt_template_type": "detailed_special",
        },
        "model_config": {"model_name_or_path": "Qwen/Qwen2-VL-2B", "output_dim": 3, "use_special_tokens": True},
        "peft_lora_config": {"lora_enable": True, "lora_r": RANK, "lora_alpha": ALPHA},
        "inference_config": NORM,
    }
    (place / "model_config.json").write_text(json.dumps(settings))
    # as in a clone of VideoAlign; must be read without being run
    (folder / "prompt_template.py").write_text(
        f"raise SystemExit\nSIMPLE = ''\nDETAILED_PROMPT_WITH_SPECIAL_TOKEN = {RUBRIC!r}\n"
    )
    tokenizer().save_pretrained(step / "tokenizer")
    if layout == "full":
        config().save_pretrained(step)
        torch.save(state, step / "model.pth")
        return place, {}
    lora = {name.replace(".default", ""): value for name, value in state.items() if ".lora_" in name}
    save_file(lora, step / "adapter_model.safetensors")
    trained = ("visual.", "embed_tokens", "rm_head")
    torch.save({n: v for n, v in state.items() if any(t in n for t in trained)}, step / "non_lora_state_dict.pth")
    base = folder / "qwen"
    base.mkdir()
    config().save_pretrained(base)
    frozen = {
        n.replace("base_model.model.", "").replace(".base_layer", ""): v
        for n, v in state.items()
        if ".lora_" not in n and "rm_head" not in n
    }
    frozen = {n: torch.randn_like(v) if any(t in n for t in trained) else v for n, v in frozen.items()}
    save_file(frozen, base / "model.safetensors")
    return place, {"base": base}


class Original:
    """The original's forward: unmerged adapters, plain positions for all tokens, scores read at the three tokens."""

    def __init__(self, state):
        state = dict(state)
        self.head = state.pop("base_model.model.rm_head.weight")
        settings = LoraConfig(
            r=RANK,
            lora_alpha=ALPHA,
            target_modules=[f"model.language_model.layers.{i}.{name}" for i in range(LAYERS) for name in LINEAR],
        )
        self.model = get_peft_model(hf.Qwen2VLForConditionalGeneration(config()), settings).eval()
        # names of transformers 5 for those of the released file
        renamed = {
            name.replace("base_model.model.visual", "base_model.model.model.visual").replace(
                "base_model.model.model.layers", "base_model.model.model.language_model.layers"
            ): value
            for name, value in state.items()
        }
        for part in ("embed_tokens", "norm"):
            renamed[f"base_model.model.model.language_model.{part}.weight"] = renamed.pop(
                f"base_model.model.model.{part}.weight"
            )
        self.model.load_state_dict(renamed, strict=True)
        self.tokenizer = tokenizer()

    def pixels(self, frames, size):
        """Patch by patch, in the order of the tower: frame pair, block of 2×2, patch in the block."""
        x = F.interpolate(frames.permute(0, 3, 1, 2).float(), size, mode="bicubic", antialias=True)
        x = x.clamp(0, 255).round().mul(1 / 255)
        mean, std = (
            torch.tensor([0.48145466, 0.4578275, 0.40821073]),
            torch.tensor([0.26862954, 0.26130258, 0.27577711]),
        )
        x = (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        rows = []
        for t in range(0, len(x), 2):
            for top in range(0, size[0], 28):
                for left in range(0, size[1], 28):
                    for y in (top, top + 14):
                        for z in (left, left + 14):
                            rows.append(x[t : t + 2, :, y : y + 14, z : z + 14].transpose(0, 1).flatten())
        return torch.stack(rows), torch.tensor([[len(x) // 2, size[0] // 14, size[1] // 14]])

    @torch.no_grad()
    def score(self, frames, prompt, size, dtype=torch.float32):
        """One video whose frames are already chosen."""
        model, head = self.model.to(dtype).base_model.model.model, self.head.to(dtype)
        pixels, grid = self.pixels(frames, size)
        pads = "<|video_pad|>" * (len(pixels) // 4)
        text = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"<|vision_start|>{pads}<|vision_end|>{RUBRIC.format(text_prompt=prompt)}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        embeds = model.language_model.embed_tokens(ids)
        seen = model.visual(pixels.to(dtype), grid_thw=grid).pooler_output
        where = (ids == SPECIAL.index("<|video_pad|>"))[..., None].expand_as(embeds)
        embeds = embeds.masked_scatter(where, seen)
        hidden = model.language_model(inputs_embeds=embeds, attention_mask=torch.ones_like(ids)).last_hidden_state
        logits = hidden @ head.T
        marks = torch.isin(ids, torch.tensor(self.tokenizer.convert_tokens_to_ids(REWARDS)))
        pooled = logits[marks]  # (3, output_dim)
        pooled = pooled.diagonal() if len(head) == 3 else pooled[:, 0]
        names = ("VQ", "MQ", "TA")
        return [(x.item() - NORM[f"{n}_mean"]) / NORM[f"{n}_std"] for n, x in zip(names, pooled, strict=True)]
