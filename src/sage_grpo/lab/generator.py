"""The laboratory's generator: a small transformer for short clips. Each world gives it words, sizes and prompts.

It is small enough for a laptop and built like large video models. It has an autoencoder, text through a tokenizer and
embeddings, attention over words and latents, modulation by the noise level, and guidance. The network predicts the
clean latents x̂0; the velocity is (x - x̂0)/σ.
"""

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from sage_grpo.config import ConfigError
from sage_grpo.core.comm import SequenceParallel
from sage_grpo.core.protocols import Condition, Prompt
from sage_grpo.core.video_model import VideoModel
from sage_grpo.lab.autoencoder import Autoencoder
from sage_grpo.lab.blocks import Block
from sage_grpo.lab.clips import as_frames, cut, join

DECODE_BATCH = 32


class LabTransformer(nn.Module):
    """A transformer over the tokens of a prompt and of a noisy latent. It predicts the clean latent.

    `latents` is the shape of a latent: channels, frames, rows and columns.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        text_length: int,
        latents: Sequence[int],
        width: int = 96,
        depth: int = 4,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if width % heads:
            near = max(width // heads, 1) * heads
            raise ConfigError(f"a width of {width} does not divide among {heads} heads; use {near} or {near + heads}")
        self.config = {
            "width": width,
            "depth": depth,
            "heads": heads,
            "vocabulary": vocabulary,
            "text_length": text_length,
            "latents": list(latents),
        }
        self.latents, self.text_length = tuple(latents), text_length
        channels, *grid = latents
        self.words = nn.Embedding(vocabulary, width)
        self.word_places = nn.Parameter(torch.randn(text_length, width) / width**0.5)
        self.patches = nn.Linear(channels, width)
        self.places = nn.Parameter(torch.randn(math.prod(grid), width) / width**0.5)
        self.noise = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, channels)

    def forward(self, x: Tensor, sigma: Tensor, tokens: Tensor) -> Tensor:
        """Return the predicted clean latents x̂0, shaped like the noisy latents `x` (B, …).

        `sigma` are the noise levels (B,), and `tokens` those of the prompts (B, text_length).
        """
        text = self.words(tokens) + self.word_places
        _, clean = self.through(sigma, text, self.patches(cut(x, (1, 1, 1))) + self.places)
        return join(self.out(self.norm(clean)), self.latents[1:], (1, 1, 1))

    def through(self, sigma: Tensor, *streams: Tensor) -> Sequence[Tensor]:
        """Run streams of tokens (B, tokens, width) through all blocks, with attention over the tokens of all streams.

        Return the streams in the same order and shapes. `sigma` are the noise levels (B,).
        """
        frequencies = torch.exp(torch.linspace(0, math.log(1000), 32, device=sigma.device))
        angles = sigma[:, None].float() * frequencies
        stream = torch.cat(streams, 1)
        modulation = self.noise(torch.cat([angles.sin(), angles.cos()], 1).to(stream.dtype)).unflatten(1, (6, -1))
        for block in self.blocks:
            stream = block(stream, modulation)
        return torch.split(stream, [tokens.shape[1] for tokens in streams], 1)


class LabModel(VideoModel):
    """The base class of the laboratory's video models, one per world.

    Only the transformer is post-trained. The autoencoder stays as it is.
    """

    lora_targets: Sequence[str] = ("qkv", "proj", "mlp.0", "mlp.2")
    # what a world gives
    world: str  # as `lab pretrain --world` calls it
    shipped: str  # the package that has a checkpoint in `base`
    pictures: str | None = None  # the package whose checkpoint has its autoencoder, if that is not its own
    network: type[LabTransformer] = LabTransformer
    clip: tuple[int, int, int]  # frames, rows, columns
    patch: tuple[int, int, int]
    channels: int  # of a latent
    words: Sequence[str]
    text_length: int

    def __init__(
        self,
        module: LabTransformer | None = None,
        tokenizer: Tokenizer | None = None,
        autoencoder: Autoencoder | None = None,
        *,
        guidance_scale: float = 1.0,
        guidance_gradient: Literal["both", "conditional"] = "both",
    ) -> None:
        """Make a model of these parts. A part that is None is created, with new weights."""
        autoencoder = autoencoder or Autoencoder(self.clip, self.patch, self.channels)
        self.autoencoder = autoencoder.requires_grad_(False).eval()
        self.module: nn.Module = module or self.new_module(autoencoder.latent_shape)
        self.tokenizer = tokenizer or self.new_tokenizer()
        if not self.tokenizer.get_vocab().keys() >= set(self.words):
            raise ConfigError(
                f"this checkpoint does not know the words of the world of {self.world}; leave model.path out for the "
                f"checkpoint that ships, or make one by `sage-grpo lab pretrain --world {self.world}`"
            )
        self.guidance_scale = guidance_scale
        self.guidance_gradient = guidance_gradient

    @classmethod
    def new_module(cls, latents: Sequence[int], width: int = 96) -> LabTransformer:
        return cls.network(vocabulary=len(cls.words) + 2, text_length=cls.text_length, latents=latents, width=width)

    @classmethod
    def new_tokenizer(cls) -> Tokenizer:
        """Return a tokenizer with one token for each of the world's `words`."""
        known = ["[pad]", "[unk]", *cls.words]
        tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[unk]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.enable_padding(pad_id=0, pad_token="[pad]", length=cls.text_length)
        tokenizer.enable_truncation(cls.text_length)
        return tokenizer

    def place(self, device: torch.device, offload_device: torch.device | None = None) -> None:
        self.module.to(device)
        self.autoencoder.to(device)

    @property
    def shard_blocks(self) -> Sequence[nn.Module]:
        blocks = self.module.get_submodule("blocks")
        return list(blocks.children())

    def share_sequence(self, sp: SequenceParallel) -> None:
        first, *_, last = self.shard_blocks
        for block in self.shard_blocks:
            block.sp = sp  # type: ignore[assignment] # a module takes anything
        first.register_forward_pre_hook(lambda module, inputs: (sp.shard(inputs[0], 1), *inputs[1:]))
        last.register_forward_hook(lambda module, inputs, out: sp.all_gather(out, 1))

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        return self.autoencoder.latent_shape

    def encode(self, prompts: Sequence[Prompt]) -> Condition:
        condition = {"tokens": self._tokens([prompt.text for prompt in prompts])}
        if self.guided:
            condition["negative_tokens"] = self._tokens([self.negative_prompt] * len(prompts))
        return condition

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        rows = self.tokenizer.encode_batch([text.lower() for text in texts])
        return torch.tensor([row.ids for row in rows], device=next(self.module.parameters()).device)

    def clean(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the predicted clean latents x̂0, shaped like the noisy latents `x` (B, …), with guidance applied.

        `sigma` are the noise levels (B,).
        """
        out: Tensor = self.module(x, sigma, condition["tokens"])
        if self.guided:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.guidance_gradient == "both"):
                without = self.module(x, sigma, condition["negative_tokens"])
            out = without + self.guidance_scale * (out - without)
        return out

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        return (x - self.clean(x, sigma, condition)) / sigma.view(-1, *(1 for _ in x.shape[1:]))

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        parts = torch.split(x0.float(), DECODE_BATCH)
        return torch.cat([as_frames(self.autoencoder.decode(part)) for part in parts])

    def save_pretrained(self, directory: str, **facts: object) -> None:
        """Write the weights of transformer and autoencoder, the configuration and the tokenizer into a folder.

        `facts` about how the model was made are added to the configuration. The autoencoder is left out if it is that
        of another world.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in self.module.state_dict().items()}, folder / "model.safetensors")
        if not self.pictures:
            # in half precision: a byte of a picture is coarser
            halves = {k: v.half().contiguous() for k, v in self.autoencoder.state_dict().items()}
            save_file(halves, folder / "autoencoder.safetensors")
        config = {"architecture": self.module.config, "autoencoder": self.autoencoder.config, **facts}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        self.tokenizer.save(str(folder / "tokenizer.json"))

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path | None = None,
        *,
        guidance_scale: float = 1.0,
        guidance_gradient: Literal["both", "conditional"] = "both",
    ) -> Self:
        """Load a model from a checkpoint folder; None for the checkpoint that ships with the package."""
        folder = Path(str(directory or files(cls.shipped) / "base"))
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{folder} holds no checkpoint of the laboratory; "
                f"`sage-grpo lab pretrain --world {cls.world}` makes one"
            )
        config = json.loads((folder / "config.json").read_text())
        if "autoencoder" not in config:
            raise ConfigError(
                f"{folder} is of the laboratory's first edition, which worked on pixels and is not read any more; "
                "leave model.path out for the checkpoint that ships, or make one by `sage-grpo lab pretrain`"
            )
        module = cls.network(**config["architecture"])
        try:
            module.load_state_dict(load_file(folder / "model.safetensors"))
        except RuntimeError as error:
            raise ConfigError(
                f"{folder} is the checkpoint of another world than {cls.world}; leave model.path out for the one that "
                f"ships, or make one by `sage-grpo lab pretrain --world {cls.world}`"
            ) from error
        autoencoder = Autoencoder(**config["autoencoder"])
        pictures = folder
        if not (folder / "autoencoder.safetensors").is_file():  # it is that of a checkpoint that ships
            pictures = Path(str(files(cls.pictures or cls.shipped) / "base"))
        autoencoder.load_state_dict(load_file(pictures / "autoencoder.safetensors"))
        return cls(
            module,
            Tokenizer.from_file(str(folder / "tokenizer.json")),
            autoencoder,
            guidance_scale=guidance_scale,
            guidance_gradient=guidance_gradient,
        )
