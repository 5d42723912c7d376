"""Text rendering: does the video show the words that the prompt asks for?

The score is gamed by a poster: large flat letters and nothing else. Combine it with a score of the scene.
"""

import re
import unicodedata
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from sage_grpo.config import ConfigError
from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.frames import Unscorable, VideoScorer, bounded, frame_numbers
from sage_grpo.rewards.installed import check_files, folder_of

try:
    from rapidocr_onnxruntime import RapidOCR
except ModuleNotFoundError:
    raise
except ImportError as error:  # opencv-python wants the libraries of a desktop, which servers lack
    raise ImportError(f"{error}; OpenCV for servers needs none of it: pip install opencv-python-headless") from error

READER = folder_of("rapidocr_onnxruntime")
MODELS = f"{READER.name}/models"
READER_HASHES = {
    f"{READER.name}/config.yaml": "bf94a1da4cba828e67b1d61e27cee14d9e7da27c9f272e04048a17e41ae97332",
    f"{MODELS}/ch_PP-OCRv4_det_infer.onnx": "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    f"{MODELS}/ch_PP-OCRv4_rec_infer.onnx": "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    f"{MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx": "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
}
# An apostrophe opens and closes a quotation only at the edge of a word.
QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|«([^»]+)»|「([^」]+)」|‘([^’]+)’(?!\w)|(?<!\w)'([^']+)'(?!\w)")


def wanted_text(prompt: Prompt, column: str = "text") -> str | None:
    """Return the text that the video should show: the prompt's `column`, or else all words that it quotes.

    None if the prompt has neither.
    """
    value = prompt.columns.get(column)
    if value is not None and str(value).strip():
        return bounded(str(value))
    quoted = ["".join(groups) for groups in QUOTED.findall(bounded(prompt.text))]
    return " ".join(quoted) or None


def fold(text: str) -> str:
    """Return the text in lower case, without spaces and full-width forms, because OCR is not to be blamed for these."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def edit_distance(reading: str, target: str, anywhere: bool = False) -> int:
    """Return how many letters to change, add or drop to turn `reading` into `target`.

    With `anywhere`, only the part of `reading` that fits `target` best is compared, and the rest does not count.
    """
    row = [0] * (len(reading) + 1) if anywhere else list(range(len(reading) + 1))
    for i, letter in enumerate(target, 1):
        above, row = row, [i]
        for j, other in enumerate(reading, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other)))
    return min(row) if anywhere else row[-1]


def similarity(reading: str, target: str, anywhere: bool = False) -> float:
    """Return 1 − edit distance / length of the longer text: 1 for equal texts, 0 for nothing in common.

    With `anywhere`, the best part of `reading` is compared, and the length is that of `target`.
    """
    reading, target = fold(reading), fold(target)
    longest = len(target) if anywhere else max(len(reading), len(target))
    return 1 - edit_distance(reading, target, anywhere) / longest


@reward("ocr", extra="ocr")
class OCRReward(VideoScorer):
    """Similarity of the text that PP-OCRv4 reads to the wanted text, from 0 to 1: best or mean of a few frames."""

    names = ("ocr",)

    def __init__(
        self,
        *,
        frames: int = 4,
        over: Literal["best", "mean"] = "best",
        anywhere: bool = False,
        column: str = "text",
        side: int = 480,
        threads: int | None = None,
        detect: bool = True,
    ) -> None:
        if over not in ("best", "mean") or frames < 1:
            raise ConfigError(f"ocr: over={over!r}, frames={frames}: use over=best or mean, and at least one frame")
        self.frames, self.over, self.anywhere, self.column = frames, over, anywhere, column
        self.detect = detect
        check_files(READER.parent, READER_HASHES, "rapidocr-onnxruntime==1.4.4")
        # Without the classifier of directions, for text upside down is not the text wanted. A whole frame taken for a
        # line is not padded to the width of long ones: that costs twice the time, and misreads more under noise.
        line = {} if detect else {"rec_img_shape": [3, 48, 48]}
        self.engine = RapidOCR(
            det_limit_side_len=side, use_cls=False, intra_op_num_threads=threads or torch.get_num_threads(), **line
        )

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        target = wanted_text(prompt, self.column)
        if target is None or not fold(target):
            raise Unscorable(f"its prompt has no column {self.column!r} and quotes no text")
        chosen = frames[self.frame_indices(len(frames))].cpu().numpy()
        scores = [similarity(self.read(picture), target, self.anywhere) for picture in chosen]
        return [max(scores) if self.over == "best" else sum(scores) / len(scores)]

    def read(self, picture: Any) -> str:
        """Return all text in an RGB picture (H, W, 3), from top to bottom.

        With the option `detect` off, the whole picture is read as one line.
        """
        lines, _ = self.engine(np.ascontiguousarray(picture[..., ::-1]), use_det=self.detect)
        return " ".join(line[-2] for line in lines or [])  # place where detected, text, confidence

    @classmethod
    def tiny(cls) -> Self:
        return cls(frames=2, side=128)
