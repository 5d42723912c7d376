"""The laboratory's video generator: a small space-time transformer for clips of moving shapes.

Small enough for a laptop and built like the large ones: text through a tokenizer and embeddings, patches in space and
time, attention over both, modulation by the noise level. It predicts the clean clip and returns the
velocity (x - x̂0)/σ: a plain velocity head stalls when a patch has more pixels than a token has channels.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Condition, Exchange, Prompt, VideoModel
from sage_grpo.lab.shapes import world as shapes
from sage_grpo.registry import model

TEXT_LENGTH = 8
WORDS = ("a", "moving", *shapes.SHAPES, *shapes.COLOURS, *shapes.DIRECTIONS)


def make_tokenizer(words: Sequence[str] = WORDS, length: int = TEXT_LENGTH) -> Tokenizer:
    known = ["[pad]", "[unk]", *words]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=0, pad_token="[pad]", length=length)
    tokenizer.enable_truncation(length)
    return tokenizer


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.exchange: Exchange | None = None  # with the processes that share a clip
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.table = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (modulation + self.table).unbind(1)
        h = self.norm1(x) * (1 + scale1[:, None]) + shift1[:, None]
        x = x + gate1[:, None] * self.proj(self.attend(*self.qkv(h).unflatten(2, (3, self.heads, -1)).unbind(2)))
        h = self.norm2(x) * (1 + scale2[:, None]) + shift2[:, None]
        out: Tensor = x + gate2[:, None] * self.mlp(h)
        return out

    def attend(self, *qkv: Tensor) -> Tensor:
        if self.exchange:
            qkv = tuple(self.exchange.to_heads(x) for x in qkv)
        q, k, v = (x.transpose(1, 2) for x in qkv)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return (self.exchange.to_tokens(h) if self.exchange else h).flatten(2)


class ShapesTransformer(nn.Module):
    """`clip` and `patch` are frames, rows and columns; defaults are those of the world of shapes."""

    def __init__(
        self,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        vocabulary: int = 15,
        text_length: int = TEXT_LENGTH,
        clip: Sequence[int] = (shapes.FRAMES, shapes.SIZE, shapes.SIZE),
        patch: Sequence[int] = (2, 4, 4),
    ) -> None:
        super().__init__()
        if any(side % part for side, part in zip(clip, patch, strict=True)):
            raise ValueError(f"a clip of {tuple(clip)} does not divide into patches of {tuple(patch)}")
        self.config = {
            "width": width,
            "depth": depth,
            "heads": heads,
            "vocabulary": vocabulary,
            "text_length": text_length,
            "clip": list(clip),
            "patch": list(patch),
        }
        self.clip, self.patch, self.text_length = tuple(clip), tuple(patch), text_length
        self.grid = tuple(side // part for side, part in zip(clip, patch, strict=True))
        pixels = 3 * math.prod(patch)
        self.words = nn.Embedding(vocabulary, width)
        self.word_places = nn.Parameter(0.02 * torch.randn(text_length, width))
        self.patches = nn.Linear(pixels, width)
        self.places = nn.Parameter(0.02 * torch.randn(math.prod(self.grid), width))
        self.noise = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, pixels)

    def forward(self, x: Tensor, sigma: Tensor, tokens: Tensor) -> Tensor:
        """The clean clip x̂0."""
        frequencies = torch.exp(torch.linspace(0, math.log(1000), 32, device=x.device))
        angles = sigma[:, None].float() * frequencies
        modulation = self.noise(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype)).unflatten(1, (6, -1))
        b, (t, h, w), (pt, ph, pw) = len(x), self.grid, self.patch
        cut = x.view(b, 3, t, pt, h, ph, w, pw).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        stream = torch.cat([self.words(tokens) + self.word_places, self.patches(cut) + self.places], 1)
        for block in self.blocks:
            stream = block(stream, modulation)
        pixels: Tensor = self.out(self.norm(stream[:, self.text_length :]))
        return pixels.view(b, t, h, w, 3, pt, ph, pw).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(x.shape)


@model("shapes")
class ShapesModel(VideoModel):
    """`VideoModel` of the laboratory. Its latents are the pixels themselves, in [-1, 1]."""

    lora_targets: Sequence[str] = ("qkv", "proj", "mlp.0", "mlp.2")
    own_monitors: Sequence[str] = ("shapes-heldout",)
    shipped = "sage_grpo.lab.shapes"  # the package that has a checkpoint in `base`

    def __init__(self, module: ShapesTransformer | None = None, tokenizer: Tokenizer | None = None) -> None:
        module = module or ShapesTransformer()
        self.module: nn.Module = module
        self.clip: tuple[int, ...] = module.clip
        self.tokenizer = tokenizer or make_tokenizer()

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        blocks = self.module.get_submodule("blocks")
        return list(blocks.children())

    def share_sequence(self, exchange: Exchange) -> None:
        first, *_, last = self.shard_blocks
        for block in self.shard_blocks:
            block.exchange = exchange  # type: ignore[assignment] # a module takes anything
        first.register_forward_pre_hook(lambda module, inputs: (exchange.mine(inputs[0], 1), *inputs[1:]))
        last.register_forward_hook(lambda module, inputs, out: exchange.everything(out, 1))

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        return shapes.all_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        shape, colour, direction = shapes.parse_prompt(prompt)
        return {
            "shape": shapes.SHAPES[shape],
            "colour": shapes.COLOURS[colour],
            "direction": shapes.DIRECTIONS[direction],
        }

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        return (3, *self.clip)

    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        rows = self.tokenizer.encode_batch([prompt.text.lower() for prompt in prompts])
        return {"tokens": torch.tensor([row.ids for row in rows], device=next(self.module.parameters()).device)}

    def clean(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        out: Tensor = self.module(x, sigma, condition["tokens"])
        return out

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        return (x - self.clean(x, sigma, condition)) / sigma.view(-1, 1, 1, 1, 1)

    def decode(self, x0: Tensor) -> Tensor:
        return ((x0 + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()

    def save_pretrained(self, directory: str, **facts: object) -> None:
        """weights, configuration with `facts` about their making, and tokenizer."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in self.module.state_dict().items()}, folder / "model.safetensors")
        config = {"architecture": self.module.config, **facts}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        self.tokenizer.save(str(folder / "tokenizer.json"))

    @classmethod
    def from_pretrained(cls, directory: str | Path | None = None) -> Self:
        """From a folder, or the checkpoint that ships with the package."""
        folder = Path(str(directory or files(cls.shipped) / "base"))
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} holds no checkpoint of the laboratory; `sage-grpo lab pretrain` makes one")
        config = json.loads((folder / "config.json").read_text())
        module = ShapesTransformer(**config["architecture"])
        module.load_state_dict(load_file(folder / "model.safetensors"))
        return cls(module, Tokenizer.from_file(str(folder / "tokenizer.json")))
