"""Good videos of several formats are read, bad ones are told by their reason, large ones never fill the memory."""

import resource
import struct
import zlib

import av
import numpy as np
import pytest
from PIL import Image

from rewards.clips import pan
from sage_grpo.config import ConfigError
from sage_grpo.evaluation.clips import Unreadable, find_videos, open_video
from sage_grpo.videos import mp4_bytes

CLIP = pan(frames=12)[:, :48, :64]
GOOD = mp4_bytes(CLIP, fps=8, scale=1)


def encode(path, frames, codec, **options):
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=8)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())


def gif(path, frames, **more):
    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=125, **more)


def huge_png(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.avi", "a.MKV", "a.gif", "a.png", "a.jpg", "a.webp"])
def test_formats(tmp_path, name):
    path, kind = tmp_path / name, name.lower().split(".")[1]
    if kind == "mp4":
        path.write_bytes(GOOD)
    elif kind == "gif":
        gif(path, CLIP.numpy())
    elif kind in ("png", "jpg", "webp"):
        Image.fromarray(CLIP[0].numpy()).save(path)
    else:
        encode(path, CLIP.numpy(), {"webm": "libvpx-vp9", "avi": "mpeg4", "mkv": "libx264"}[kind])
    video = open_video(path)
    still = kind in ("png", "jpg", "webp")
    assert video.frames.shape == (1 if still else 12, 48, 64, 3)
    assert (video.frames.double() - CLIP[: len(video.frames)].double()).abs().mean() < 8
    assert video.fps == (None if still else pytest.approx(8, rel=0.1))


def broken(path, kind):
    if kind == "truncated":
        path.write_bytes(GOOD[: len(GOOD) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("a text file\n" * 20)
    elif kind == "index first":
        encode(path, CLIP.numpy(), "libx264", movflags="faststart")
        path.write_bytes(path.read_bytes()[: int(0.7 * path.stat().st_size)])
    elif kind == "sound":
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", rate=44100)
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            sound.rate = 44100
            container.mux(stream.encode(sound))
            container.mux(stream.encode())
    elif kind == "picture":
        path.write_bytes(huge_png(60_000))
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("truncated", "not a video, or a damaged one"),
        ("empty", "the file is empty"),
        ("text", "not a video, or a damaged one"),
        ("index first", "damaged|cut short|cannot be decoded"),
        ("sound", "no picture, only sound"),
        ("picture", "how large its frames are|above the limit"),
    ],
)
def test_broken_videos_have_a_reason(tmp_path, kind, reason):
    with pytest.raises(Unreadable, match=reason):
        open_video(broken(tmp_path / "x.mp4", kind))


def test_frames_that_are_missing_at_the_end_are_noticed(tmp_path):
    """Raw pictures in an avi: what is left decodes without any error."""
    path = tmp_path / "x.avi"
    encode(path, CLIP.numpy(), "mpeg4")
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    with pytest.raises(Unreadable, match=r"cut short|damaged"):
        open_video(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bomb.png", "bomb.gif", "bomb.mp4", "bomb.mkv"])
def test_pixels_are_bounded_before_anything_is_decoded(tmp_path, name):
    path = tmp_path / name
    if name.endswith("png"):
        path.write_bytes(huge_png(60_000))
    elif name.endswith("gif"):
        gif(path, [np.full((600, 600), i, np.uint8) for i in range(80)])
    else:
        encode(path, np.zeros((80, 600, 600, 3), np.uint8), "libx264")
    assert path.stat().st_size < 300_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Unreadable, match=r"declares \d+ frames? of .* above the limit of 20; raise --megapixels"):
        open_video(path, megapixels=20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB; decoded it is 86 MB or more


def test_a_file_that_does_not_count_its_frames_is_bounded_while_it_is_decoded(tmp_path):
    path = tmp_path / "x.mkv"
    encode(path, CLIP.numpy(), "libx264", live="1")  # no duration is written
    assert len(open_video(path).frames) == 12
    with pytest.raises(Unreadable, match=r"has at least 9 frames|declares 12 frames"):
        open_video(path, megapixels=8.5 * 48 * 64 / 1e6)


def test_folders_are_searched_below_and_pictures_count_where_there_are_no_films(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b/2.mp4", "1.MP4", "sheet.png", "notes.txt", ".hidden/3.mp4"):
        (tmp_path / name).write_bytes(b"x")
    assert [p.relative_to(tmp_path).as_posix() for p in find_videos([tmp_path])] == ["1.MP4", "b/2.mp4"]
    (tmp_path / "1.MP4").unlink()
    (tmp_path / "b/2.mp4").unlink()
    assert [p.name for p in find_videos([tmp_path])] == ["sheet.png"]
    (tmp_path / "sheet.png").unlink()
    with pytest.raises(ConfigError, match="has no videos in it; looked for"):
        find_videos([tmp_path])
    with pytest.raises(ConfigError, match=r"no file or folder .*nowhere"):
        find_videos([tmp_path / "nowhere"])
