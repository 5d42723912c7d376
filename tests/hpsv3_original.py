"""HPSv3 as it was released, at toy size, and what the original computes from it.

Names and shapes are written out, the network is transformers' own class, pictures are resized by Pillow and cut one
patch at a time: nothing is shared with what is tested.
"""

import json

import torch
import transformers as hf
from PIL import Image
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch.nn import functional as F

import videoalign_original

INSTRUCTION = "\nRate this picture.\nTextual prompt - {text_prompt}\n\n\n"
ENDING = "\nOverall: <|Reward|>\n\nEND\n"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
PICTURE, REWARD = 5, len(SPECIAL) + 256


def config(words):
    made = videoalign_original.config()
    made.text_config.vocab_size, made.image_token_id, made.video_token_id = words, PICTURE, words - 1
    return made


def tokenizer():
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return hf.Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate(words)},
        merges=[],
        unk_token=SPECIAL[0],
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=SPECIAL[1:],
    )


def weights(seed=0):
    """All tensors of HPSv3.safetensors by their names: Qwen2-VL of transformers 4.45 without adapters, and a head."""
    trained = videoalign_original.weights(1, seed)
    state = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in trained.items()
        if ".lora_" not in name and "rm_head" not in name
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][: REWARD + 1].clone()
    g = torch.Generator().manual_seed(seed + 1)
    for layer, (rows, columns) in {0: (48, 64), 3: (16, 48), 5: (2, 16)}.items():
        state[f"rm_head.{layer}.weight"] = torch.randn(rows, columns, generator=g) * columns**-0.5
        state[f"rm_head.{layer}.bias"] = torch.randn(rows, generator=g) * 0.3
    return state


def release(folder, state):
    """The released file, the base, and the package's file with the instruction; returns their places."""
    base = folder / "base"
    base.mkdir(parents=True)
    text = config(REWARD + 40).text_config  # the base's embedding has room to spare
    flat = {  # all on one level, as the base's config.json still is
        "model_type": "qwen2_vl",
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": text.vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "max_position_embeddings": 4096,
        "image_token_id": PICTURE,
        "video_token_id": text.vocab_size - 1,
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
    }
    (base / "config.json").write_text(json.dumps(flat))
    tokenizer().save_pretrained(base)
    save_file(state, folder / "HPSv3.safetensors")
    # must be read without being run
    (folder / "collator.py").write_text(
        f"raise SystemExit\nINSTRUCTION = {INSTRUCTION!r}\nINSTRUCTION_debug = '{{text_prompt}}'\n"
        f"prompt_with_special_token = {ENDING!r}\nprompt_without_special_token = ''\n"
    )
    return str(folder), str(base), str(folder / "collator.py")


class Original:
    """The original's forward: pictures put among the words' embeddings, plain positions, the head at its token."""

    def __init__(self, state):
        state = dict(state)
        self.head = {name: state.pop(name) for name in list(state) if name.startswith("rm_head")}
        self.model = hf.Qwen2VLForConditionalGeneration(config(REWARD + 1)).eval()
        names = {"visual.": "model.visual.", "model.": "model.language_model.", "lm_head.": "lm_head."}
        renamed = {}
        for name, value in state.items():
            start = next(start for start in names if name.startswith(start))
            renamed[names[start] + name[len(start) :]] = value
        self.model.load_state_dict(renamed, strict=True)
        self.tokenizer = tokenizer()
        self.tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})

    @torch.no_grad()
    def score(self, picture, prompt, size, dtype=torch.float32):
        """Mean and spread for one uint8 picture (H, W, 3)."""
        image = Image.fromarray(picture.numpy()).resize(size[::-1], Image.BICUBIC)
        x = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(*size, 3).permute(2, 0, 1) / 255
        mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
        x = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        rows = []
        for top in range(0, size[0], 28):
            for left in range(0, size[1], 28):
                for y in (top, top + 14):
                    for z in (left, left + 14):
                        patch = x[:, y : y + 14, z : z + 14]
                        rows.append(torch.stack([patch, patch], 1).flatten())  # the picture twice, as a video
        pixels, grid = torch.stack(rows), torch.tensor([[1, size[0] // 14, size[1] // 14]])
        text = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"<|vision_start|>{'<|image_pad|>' * (len(rows) // 4)}<|vision_end|>"
            f"{INSTRUCTION.format(text_prompt=prompt)}{ENDING}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        model = self.model.to(dtype).model
        embeds = model.language_model.embed_tokens(ids)
        seen = model.visual(pixels.to(dtype), grid_thw=grid).pooler_output
        embeds = embeds.masked_scatter((ids == PICTURE)[..., None].expand_as(embeds), seen)
        hidden = model.language_model(inputs_embeds=embeds, attention_mask=torch.ones_like(ids)).last_hidden_state
        x = hidden[ids == REWARD].float()
        for layer in (0, 3, 5):
            x = F.linear(x, self.head[f"rm_head.{layer}.weight"], self.head[f"rm_head.{layer}.bias"])
            x = x.relu() if layer < 5 else x
        return x[0].tolist()
