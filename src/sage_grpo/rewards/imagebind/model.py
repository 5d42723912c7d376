"""Does the picture match the sound? The cosine of ImageBind's embeddings of both.

ImageBind recognises what is seen and heard, not when. The score is gamed by a still of a thing with its usual noise:
combine it with `synchrony`. The folder of weights is made by `sage-grpo rewards convert`. The released weights may not
be used commercially (CC BY-NC-SA 4.0).
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.checkpoints import move
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.imagebind.inputs import RATE, pictures, spectrograms
from sage_grpo.rewards.imagebind.network import ImageBind, empty_network
from sage_grpo.rewards.sound import Clip, SoundScorer

SETTINGS, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "imagebind-1"  # of the converted folder


def load_strictly(folder: Path) -> ImageBind:
    """Return the network with the weights of a converted folder, which must have exactly the network's tensors."""
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
    if settings.get("format") != FORMAT:
        raise RewardError(
            f"{folder} is not ImageBind, or of another version; convert it with sage-grpo rewards convert"
        )
    network = empty_network(settings)
    try:
        network.load_state_dict(load_file(folder / WEIGHTS), strict=True, assign=True)
    except (RuntimeError, SafetensorError) as error:
        raise RewardError(f"{folder} does not hold this network; convert it again. {str(error)[:400]}") from error
    return network.eval().requires_grad_(False)


@reward("imagebind", extra="models")
class ImageBindReward(SoundScorer):
    """Cosine between ImageBind's embeddings of picture and sound, from −1 to 1.

    Each embedding is the mean over a few clips of two seconds.

    Args:
        path: Folder of a converted checkpoint.
        device: Where to score, by default on the host.
    """

    names: tuple[str, ...] = ("imagebind",)
    device_bytes = 2_900_000_000  # of its weights: what a plan counts

    def __init__(self, path: str, *, device: str | None = None) -> None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise MissingWeights(
                f"ImageBind's checkpoint {path} is not there; make it once: "
                f"sage-grpo rewards convert imagebind_huge.pth {path} (docs/rewards-scorers.md)"
            )
        if not (folder / SETTINGS).is_file() or not (folder / WEIGHTS).is_file():
            raise RewardError(f"{path} has no {SETTINGS} and {WEIGHTS} as sage-grpo rewards convert writes them")
        self.network = load_strictly(folder)
        move(self.network, device, "imagebind")

    def score_clip(self, clip: Clip, prompt: Prompt) -> list[float]:
        device = self.network.audio.first.device
        heard = self.network.audio(spectrograms(clip.mono(RATE)).to(device)).double().mean(0)
        seen = self.network.vision(pictures(clip.frames, clip.frame_rate).to(device)).double().mean(0)
        return [float(F.cosine_similarity(seen, heard, dim=0))]

    @classmethod
    def tiny(cls) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_folder(Path(folder))
            return cls(folder)


def make_tiny_folder(folder: Path) -> None:
    """Write a converted folder at toy size: real names and layers, random numbers."""
    part = {"width": 16, "layers": 1, "heads": 2}
    sizes = {"output": 8, "vision": part, "audio": part}
    rng = torch.Generator().manual_seed(0)
    state = {n: torch.randn(x.shape, generator=rng) * 0.3 for n, x in empty_network(sizes).state_dict().items()}
    save_file(state, folder / WEIGHTS)
    (folder / SETTINGS).write_text(json.dumps({"format": FORMAT, **sizes}))
