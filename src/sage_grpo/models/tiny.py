"""Tokenizers and encoders of the real classes at toy size, made without any file, for rehearsals and tests.

Every adapter's `tiny()` builds a pipeline of its own classes from these parts. `save_pretrained` then writes a
checkpoint, which is loaded by the same code as the real one.
"""

from typing import Any

import torch
import transformers as hf
from tokenizers import pre_tokenizers

LETTERS = [chr(i) for i in range(32, 127)]
T5_XXL = {
    "d_model": 4096,
    "d_ff": 10240,
    "d_kv": 64,
    "num_heads": 64,
    "num_layers": 24,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
}
QWEN25_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
QWEN25_VL_7B = {
    "text_config": QWEN25_7B,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    },
}
QWEN3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
GEMMA3_12B = {
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 262208,
    }
}


def unigram_tokenizer(length: int) -> Any:
    """Return a T5 tokenizer with one token per character, for texts of up to `length` tokens."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -1.0) for letter in ["▁", *LETTERS])]
    return hf.T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=length)


def clip_tokenizer(length: int) -> Any:
    words = ["<|startoftext|>", "<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"{word}</w>" for word in words[2:])])}
    return hf.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=length)


def qwen_tokenizer(header: int) -> Any:
    """Return a byte-level Qwen tokenizer.

    Its chat template has filler in place of the system message, so that a prompt's text starts at token `header`. With
    0 there is no filler.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {word: i for i, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = hf.Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=special[0],
        pad_token=special[0],
        eos_token=special[2],
        additional_special_tokens=special[1:2],
    )
    start = "<|im_start|>user\n"
    filler = header - len(start) + len("<|im_start|>") - 1
    tokenizer.chat_template = (
        "{{ '" + special[0] + "' * " + str(filler) + " }}{% for message in messages %}{% if message.role == 'user' %}"
        "{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    )
    return tokenizer


def gemma_tokenizer(length: int) -> Any:
    """Return a Gemma tokenizer with one token per character, for texts of up to `length` tokens."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *LETTERS]
    return hf.GemmaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=length)


def gemma_encoder(width: int, vocabulary: int) -> Any:
    text = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": vocabulary,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = hf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return hf.Gemma3ForConditionalGeneration(config).eval()


def t5_encoder(width: int, vocabulary: int, kind: str = "T5") -> Any:
    config = getattr(hf, f"{kind}Config")(
        d_model=width,
        d_ff=2 * width,
        d_kv=width // 2,
        num_heads=2,
        num_layers=2,
        vocab_size=vocabulary,
        relative_attention_num_buckets=8,
        dropout_rate=0.0,
    )
    return getattr(hf, f"{kind}EncoderModel")(config).eval()


def qwen_encoder(width: int, vocabulary: int) -> Any:
    config = hf.Qwen2_5_VLTextConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=2,
        vocab_size=vocabulary,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    )
    return hf.Qwen2_5_VLTextModel(config).eval()


def qwen_vl_encoder(width: int, vocabulary: int) -> Any:
    """Return a Qwen2.5-VL encoder at toy size.

    Its vision tower is part of the checkpoint, but some pipelines never use it.
    """
    text = qwen_encoder(width, vocabulary).config.to_dict()
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": width,
    }
    config = hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return hf.Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen3_encoder(width: int, vocabulary: int) -> Any:
    config = hf.Qwen3Config(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=vocabulary,
    )
    return hf.Qwen3Model(config).eval()


def clip_text(width: int, vocabulary: int, length: int) -> Any:
    config = hf.CLIPTextConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        projection_dim=width,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return hf.CLIPTextModelWithProjection(config).eval()


def vision_encoder(kind: str) -> Any:
    config = getattr(hf, f"{kind}VisionConfig")(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    return getattr(hf, f"{kind}VisionModel")(config).eval()


def seeded(make: Any) -> Any:
    """Call `make` with a fixed random seed and return its result, so that a tiny checkpoint is the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()
