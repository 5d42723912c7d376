"""VideoAlign (VideoReward): visual quality, motion quality and text alignment, judged by Qwen2-VL.

The model reads sampled frames and a rubric, in which each of the three dimensions ends with a special token. A linear
head on the hidden states of these tokens gives the scores. The folder of weights is made by `sage-grpo rewards
convert`.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import init_empty_weights
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLModel

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.reward import Reward
from sage_grpo.core.scores import Scores
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.frames import bounded
from sage_grpo.rewards.videoalign.frames import (
    FRAMES_OF_PATCH,
    MERGE,
    frame_indices,
    frame_size,
    patches,
    resize,
    without,
)

NAMES = ("VQ", "MQ", "TA")
TOKENS = tuple(f"<|{name}_reward|>" for name in NAMES)
PROMPT_PLACE = "{text_prompt}"
SETTINGS, WEIGHTS, RUBRIC, HEAD = "videoalign.json", "model.safetensors", "rubric.txt", "rm_head.weight"
FORMAT = 1  # of the converted folder
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>{rubric}<|im_end|>\n"
    "<|im_start|>assistant\n"
)

log = logging.getLogger(__name__)


def empty_model(config: Qwen2VLConfig) -> Any:
    """Return the network without weights.

    It is the plain class `Qwen2VLModel` on purpose. For a subclass the library would not rename weights, and would
    leave some of them random.
    """
    with init_empty_weights(include_buffers=False):
        return Qwen2VLModel(config)


def load_strictly(folder: Path, dtype: torch.dtype) -> tuple[Any, Tensor]:
    """Return network and head with the weights of a converted folder, which must have exactly the network's tensors."""
    state = load_file(folder / WEIGHTS)
    head = state.pop(HEAD, None)
    if head is None:
        raise RewardError(f"{folder / WEIGHTS} has no {HEAD}: it is not a converted VideoAlign checkpoint")
    model = empty_model(Qwen2VLConfig.from_pretrained(folder))
    try:
        model.load_state_dict({name: value.to(dtype) for name, value in state.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise RewardError(f"{folder} does not hold this network; convert it again. {str(error)[:400]}") from error
    return model.eval().requires_grad_(False), head.float()


@dataclass(frozen=True)
class Question:
    """The network's input for one video: tokens of rubric and prompt, pixels of its patches, and their grid."""

    tokens: Tensor
    pixels: Tensor
    grid: Tensor


@reward("videoalign", extra="models")
class VideoAlign(Reward):
    """The scores of visual quality (VQ), motion quality (MQ) and text alignment (TA), as judged by VideoAlign.

    Each score is in standard deviations above the mean of the training data.

    Args:
        path: Folder of a converted checkpoint.
        fps: Frames per second of the videos.
        device: Where to score, by default on the host.
        dtype: Precision of the network; the original runs in bfloat16.
        batch_size: Videos in one pass; with 1, no score depends on other videos.
        max_frames: Most frames of a video that the network gets.
    """

    names = NAMES
    device_bytes = 4_400_000_000  # of its weights in bfloat16: what a plan counts
    presets: Mapping[str, Mapping[str, float]] = {  # the paper's settings
        "A": {"VQ": 1.0, "MQ": 1.0, "TA": 1.0},
        "B": {"VQ": 0.5, "MQ": 0.5, "TA": 1.0},
    }

    def __init__(
        self,
        path: str,
        *,
        fps: float = 24.0,
        device: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 1,
        max_frames: int = 768,
    ) -> None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise MissingWeights(
                f"VideoAlign's checkpoint {path} is not there; make it once: "
                f"sage-grpo rewards convert SOURCE {path} (docs/rewards.md)"
            )
        if not (folder / SETTINGS).is_file():
            raise RewardError(
                f"{path} has no {SETTINGS}: it is not converted yet; sage-grpo rewards convert {path} TARGET"
            )
        if dtype not in DTYPES:
            raise RewardError(f"VideoAlign's dtype is {' or '.join(DTYPES)}, not {dtype!r}")
        if fps <= 0 or batch_size < 1 or max_frames < FRAMES_OF_PATCH:
            raise RewardError(f"VideoAlign needs fps > 0, batch_size ≥ 1 and max_frames ≥ {FRAMES_OF_PATCH}")
        self.fps, self.batch_size, self.max_frames = fps, batch_size, max_frames
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
        if self.settings.get("format") != FORMAT:
            raise RewardError(f"{path} is of another version; convert it again with sage-grpo rewards convert")
        self.model, self.head = load_strictly(folder, DTYPES[dtype])
        try:
            self.device = torch.device(device) if device else self.head.device
            # buffers too: the original casts the whole module, and so rounds even the frequencies of its positions
            self.model.to(self.device, DTYPES[dtype])
            self.head = self.head.to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise RewardError(f"VideoAlign cannot be put on device {device!r}: {str(error).splitlines()[0]}") from error
        scale = [self.settings["normalisation"][name] for name in NAMES]
        self.mean, self.std = torch.tensor(scale, dtype=torch.float64).T
        self._read_words(folder)
        self._ever_scored = False

    def _read_words(self, folder: Path) -> None:
        self.tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, local_files_only=True)
        special = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._reward_tokens = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(TOKENS)))
        self._rubric = (folder / RUBRIC).read_bytes().decode()
        ids = self._tokens("", 1)
        reward_ids = ids[torch.isin(ids, self._reward_tokens)].tolist()
        if reward_ids != self._reward_tokens.tolist() or (ids == self.model.config.video_token_id).sum() != 1:
            raise RewardError(
                f"{folder}: tokenizer or {RUBRIC} do not give {', '.join(TOKENS)} once each, in this order"
            )

    def _tokens(self, text: str, video_tokens: int) -> Tensor:
        chat = CHAT.replace("{rubric}", self._rubric.replace(PROMPT_PLACE, without(self._special, text)))
        ids = torch.tensor(self.tokenizer(chat, add_special_tokens=False)["input_ids"])
        return ids.repeat_interleave(torch.where(ids == self.model.config.video_token_id, video_tokens, 1))

    def frame_indices(self, frames: int) -> list[int]:
        numbers: list[int] = frame_indices(frames, self.fps, self.settings["rate"], self.max_frames).tolist()
        return numbers

    def score(self, videos: Tensor, prompts: Sequence[Prompt]) -> Scores:
        if videos.dtype != torch.uint8 or videos.ndim != 5 or videos.shape[-1] != 3 or len(prompts) != len(videos):
            raise RewardError(
                f"VideoAlign takes uint8 frames (B, F, H, W, 3) with B prompts, not {videos.dtype} "
                f"{tuple(videos.shape)} with {len(prompts)}"
            )
        indices = self.frame_indices(videos.shape[1])
        size = frame_size(videos.shape[2], videos.shape[3], most=self.settings["max_pixels"])
        causes: dict[int, Exception] = {}

        def attempt(rows: range) -> Tensor:
            """Return the scores (B, 3) of some videos in one batch.

            If the batch fails, each of its videos is tried alone.
            """
            try:
                return self._judge([self._ask(videos[i, indices], bounded(prompts[i].text), size) for i in rows])
            except Exception as error:
                causes[rows[0]] = error.with_traceback(None)  # a trace would keep the failed batch in memory
            if len(rows) == 1:
                return torch.full((1, len(NAMES)), float("nan"), dtype=torch.float64)
            del causes[rows[0]]
            return torch.cat([attempt(range(i, i + 1)) for i in rows])

        everyone = range(len(videos))
        parts = [attempt(everyone[i : i + self.batch_size]) for i in everyone[:: self.batch_size]]
        values = torch.cat(parts) if parts else torch.zeros(0, len(NAMES), dtype=torch.float64)
        good = values.isfinite().all(1)
        self._report(good, causes)
        return Scores(values, good[:, None].expand(-1, len(NAMES)).clone())

    def _report(self, good: Tensor, causes: dict[int, Exception]) -> None:
        """Log the reason of each masked video, or raise if all videos failed, because then the scorer is at fault.

        A call with a single video masks the video if others were scored before.
        """
        reasons = {i: str(causes.get(i, "its scores are not finite")) for i in (~good).nonzero()[:, 0].tolist()}
        if reasons and not good.any() and (len(good) > 1 or not self._ever_scored):
            cause = causes.get(min(reasons))
            raise RewardError(f"VideoAlign could score none of {len(good)} videos: {reasons[min(reasons)]}") from cause
        for i, reason in reasons.items():
            log.warning("VideoAlign: video %d of %d is masked: %s", i, len(good), reason)
        self._ever_scored |= bool(good.any())

    def _ask(self, frames_FHWC: Tensor, text: str, size: tuple[int, int]) -> Question:
        pixels, grid = patches(resize(frames_FHWC.to(self.device), size))
        return Question(self._tokens(text, len(pixels) // MERGE**2), pixels, grid)

    @torch.no_grad()
    def _judge(self, questions: Sequence[Question]) -> Tensor:
        tokens = torch.nn.utils.rnn.pad_sequence([q.tokens for q in questions], batch_first=True)
        places = (tokens[:, :, None] == self._reward_tokens).int().argmax(1)
        count, length = tokens.shape
        hidden = self.model(  # without a mask: what pads is on the right, and tokens see only to their left
            input_ids=tokens.to(self.device),
            # plain positions, as in the original: left to itself the library numbers rows and columns of the video
            position_ids=torch.arange(length, device=self.device).expand(3, count, length),
            pixel_values_videos=torch.cat([q.pixels for q in questions]),
            video_grid_thw=torch.stack([q.grid for q in questions]).to(self.device),
            use_cache=False,
        ).last_hidden_state
        read = hidden[torch.arange(count)[:, None], places.to(self.device)].float()
        raw = read @ self.head.T  # (B, 3 tokens, 1 or 3 outputs)
        raw = raw[..., 0] if len(self.head) == 1 else raw.diagonal(dim1=1, dim2=2)
        scores: Tensor = (raw.cpu().double() - self.mean) / self.std
        return scores
