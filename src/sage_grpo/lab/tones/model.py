"""The model of shapes with sound: one network makes the latents of the clip and the pitch at each frame."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from sage_grpo.core.latents import LatentParts
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.lab.clips import cut, join
from sage_grpo.lab.first.model import FirstShapesModel
from sage_grpo.lab.generator import LabTransformer
from sage_grpo.lab.shapes.world import FRAMES
from sage_grpo.lab.tones import world as tones
from sage_grpo.registry import model

PICTURE, SOUND = "picture", "sound"


class TonesTransformer(LabTransformer):
    """A transformer with one more token per frame, for the pitch of the sound, besides those of prompt and picture.

    Attention is over all of these tokens, so picture and sound see each other in every block.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        width = sizes.get("width", 96)
        self.parts = LatentParts({PICTURE: self.latents, SOUND: (FRAMES,)})
        self.sounds = nn.Linear(1, width)
        self.times = nn.Parameter(torch.randn(FRAMES, width) / width**0.5)
        self.sound_out = nn.Linear(width, 1)

    def forward(self, x: Tensor, sigma: Tensor, tokens: Tensor) -> Tensor:
        given = self.parts.unpack(x)
        picture = self.patches(cut(given[PICTURE], (1, 1, 1))) + self.places
        sound = self.sounds(given[SOUND][..., None]) + self.times
        _, picture, sound = self.through(sigma, self.words(tokens) + self.word_places, picture, sound)
        clean = {
            PICTURE: join(self.out(self.norm(picture)), self.latents[1:], (1, 1, 1)),
            SOUND: self.sound_out(self.norm(sound)),
        }
        return self.parts.pack(clean)


@model("tones")
class TonesModel(FirstShapesModel):
    """The `VideoModel` that makes clips of a shape with a tone. Its autoencoder is that of `FirstShapesModel`."""

    world = "tones"
    shipped = "sage_grpo.lab.tones"
    pictures = FirstShapesModel.shipped
    network = TonesTransformer

    @classmethod
    def of_shapes(cls) -> Self:
        """Return a model with the weights of `FirstShapesModel`. Its layers for sound are untrained."""
        silent = FirstShapesModel.from_pretrained()
        made = cls(None, silent.tokenizer, silent.autoencoder)
        made.module.load_state_dict(silent.module.state_dict(), strict=False)
        return made

    @property
    def parts(self) -> LatentParts:
        return LatentParts({PICTURE: self.autoencoder.latent_shape, SOUND: (FRAMES,)})

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        return self.parts.shape

    def with_sound(self, pictures: Tensor, octaves: Tensor) -> Tensor:
        """Pack latents of clips (N, C, …) and pitches (N, FRAMES), in octaves above 440 Hz, into one row per clip."""
        return self.parts.pack({PICTURE: pictures, SOUND: octaves / tones.SPREAD})

    def decode(self, x0: Tensor) -> Tensor:
        return super().decode(self.parts.unpack(x0)[PICTURE])

    def render(self, x0: Tensor) -> Videos:
        octaves = self.parts.unpack(x0.float())[SOUND] * tones.SPREAD
        return Videos(self.decode(x0), tones.FRAME_RATE, tones.tone(octaves), tones.SAMPLE_RATE)
