"""Small videos whose source a machine can see by their colour, and nobody can read from what is served."""

import io
import json
from fractions import Fraction
from hashlib import sha256

import av
import numpy as np

SOURCES = {"methodzeta": (220, 60, 60), "baselinealpha": (60, 200, 60), "baselinebeta": (60, 60, 220)}
PROMPTS = {"0003": "a square goes up", "0007": "a square goes down <b>&", "0011": "ein Quadrat steht: ✓"}
FPS, FRAMES, SIDE = 24, 6, 128


def clip(colour, shift=0):
    """A bright square that moves over one colour."""
    frames = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8)
    frames[:] = colour
    for t in range(FRAMES):
        frames[t, 40:88, 10 + shift + 8 * t : 58 + shift + 8 * t] = 250
    return frames


def mp4(frames, source="", codec="libx264", pix_fmt="yuv420p"):
    """A file that tells where it is from, in each place that a file has for it."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4", options={"movflags": "use_metadata_tags"}) as container:
        stream = container.add_stream(codec, rate=Fraction(FPS))
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pix_fmt
        if source:
            container.metadata.update(title=source, comment=source, made_by=source)
            stream.metadata["handler_name"] = source
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)))
        container.mux(stream.encode())
    return out.getvalue()


def write_eval(folder, seeds=(0,)):
    prompts = [{"id": key, "text": text, "tags": {}} for key, text in PROMPTS.items()]
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"version": 1, "sources": list(SOURCES), "prompts": prompts, "seeds": list(seeds)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for source, colour in SOURCES.items():
        (folder / "videos" / source).mkdir(parents=True, exist_ok=True)
        for i, key in enumerate(PROMPTS):
            for seed in seeds:
                data = mp4(clip(colour, shift=3 * i + seed), source=source)
                (folder / "videos" / source / f"{key}-{seed}.mp4").write_bytes(data)
    return folder


def rater_of(token):
    return sha256(token.encode()).hexdigest()[:16]
