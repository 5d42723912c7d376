"""Videos come back as they went in, tiny ones large enough to look at."""

import io
import os
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sage_grpo.videos import (
    SoundTrack,
    contact_sheet,
    font_of,
    mp4_bytes,
    read_mp4,
    read_sound,
    sound_of,
    wrap,
    write_mp4,
)

BARS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (255, 255, 0), (200, 30, 120), (90, 90, 90)]


def coloured(frames=6):
    """16×16 vertical bars that move two pixels a frame: every frame and every colour can be told apart."""
    bars = np.array(BARS, np.uint8).repeat(2, axis=0)
    rows = np.stack([np.roll(bars, 2 * frame, axis=0) for frame in range(frames)])
    return rows[:, None].repeat(16, axis=1)


def test_a_tiny_video_comes_back_frame_by_frame(tmp_path):
    video = coloured()
    write_mp4(tmp_path / "deep" / "a.mp4", video)
    back = read_mp4(tmp_path / "deep" / "a.mp4")
    assert back.shape == (6, 128, 128, 3)
    assert back.dtype == np.uint8
    centres = back[:, 4::8, 4::8]  # the middle of each enlarged pixel
    assert np.abs(centres.astype(int) - video).max() <= 6
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.mp4"]


def test_fine_detail_survives(tmp_path):
    """Smoothed noise, the hard case for a codec, at its own size: no visible loss."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 66, 66, 1))
    smooth = sum(noise[:, i : i + 64, j : j + 64] for i in range(3) for j in range(3)) // 9
    video = smooth.repeat(3, axis=3).astype(np.uint8)
    write_mp4(tmp_path / "a.mp4", video, scale=1)
    error = np.square(read_mp4(tmp_path / "a.mp4").astype(float) - video).mean()
    assert 10 * np.log10(255**2 / error) > 38  # decibels of peak signal over noise


@pytest.mark.parametrize(("rate", "channels"), [(24_000, 2), (16_000, 1), (44_100, 2)])
def test_sound_comes_back_at_its_time(tmp_path, rate, channels):
    """A tone on the left all along, and on the right (or alone) from the middle on."""
    time = np.arange(rate * 3 // 4) / rate
    late = np.where(time >= 0.375, 0.5 * np.sin(2 * np.pi * 880 * time), 0)
    wave = np.stack([0.5 * np.sin(2 * np.pi * 440 * time), late])[-channels:].astype(np.float32)
    write_mp4(tmp_path / "a.mp4", coloured(), 8, sound=SoundTrack(wave, rate))
    assert len(read_mp4(tmp_path / "a.mp4")) == 6
    back = read_sound(tmp_path / "a.mp4")
    assert back.wave.shape == (channels, round(0.75 * back.rate))
    begins = np.argmax(np.abs(back.wave[-1]) > 0.1) / back.rate
    assert begins == pytest.approx(0.375, abs=0.002)
    again = np.interp(np.arange(back.wave.shape[1]) / back.rate, time, wave[0])
    if channels == 2:
        assert np.sqrt(np.square(back.wave[0] - again).mean()) < 0.02
        tone = np.abs(np.fft.rfft(back.wave[0])).argmax() / 0.75
        assert tone == pytest.approx(440, abs=2)


def muxed(path, pictures_from, sound_from):
    """Both streams begin when they are told to, in seconds; the tone is in the sound's first moment."""
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.height, stream.width, stream.pix_fmt = *coloured().shape[1:3], "yuv420p"
        heard = container.add_stream("pcm_f32le", rate=8000, layout="mono")
        for i, picture in enumerate(coloured()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = i + round(8 * pictures_from), Fraction(1, 8)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        tone = av.AudioFrame.from_ndarray(np.full((1, 8000), 0.5, np.float32), format="flt", layout="mono")
        tone.sample_rate, tone.pts, tone.time_base = 8000, round(8000 * sound_from), Fraction(1, 8000)
        container.mux([*heard.encode(tone), *heard.encode()])


@pytest.mark.parametrize(
    ("pictures_from", "sound_from", "begins", "samples"),
    [(0, 0, 0, 8000), (0, 0.5, 4000, 12_000), (0.5, 0.25, 0, 6000), (0.5, 0.5, 0, 8000)],
)
def test_sound_is_heard_from_the_first_picture_on(tmp_path, pictures_from, sound_from, begins, samples):
    muxed(tmp_path / "a.mkv", pictures_from, sound_from)
    wave = read_sound(tmp_path / "a.mkv").wave
    assert wave.shape == (1, samples)
    assert int((wave[0] > 0).argmax()) == begins


def test_sound_that_is_over_before_the_first_picture_is_none(tmp_path):
    muxed(tmp_path / "a.mkv", 2.0, 0.0)
    assert read_sound(tmp_path / "a.mkv") is None


def test_a_video_without_sound_has_none(tmp_path):
    write_mp4(tmp_path / "a.mp4", coloured())
    assert read_sound(tmp_path / "a.mp4") is None
    assert sound_of(None, None, 1) is None
    heard = sound_of(torch.arange(8.0).view(2, 1, 4), 100, 1)
    assert (heard.wave == [[4, 5, 6, 7]]).all()
    assert heard.rate == 100


def test_tensors_and_arrays_are_one():
    assert mp4_bytes(torch.from_numpy(coloured())) == mp4_bytes(coloured())


@pytest.mark.parametrize(
    ("height", "width", "scale", "expected"),
    [
        (16, 16, None, (128, 128)),
        (17, 40, None, (136, 320)),  # 8 × 17: the first whole factor that reaches 128
        (129, 131, None, (130, 132)),  # large enough, but odd
        (128, 200, None, (128, 200)),
        (16, 16, 1, (16, 16)),
        (15, 33, 3, (46, 100)),
    ],
)
def test_sizes(tmp_path, height, width, scale, expected):
    write_mp4(tmp_path / "a.mp4", np.full((2, height, width, 3), 90, np.uint8), scale=scale)
    back = read_mp4(tmp_path / "a.mp4")
    assert back.shape == (2, *expected, 3)
    assert np.abs(back.astype(int) - 90).max() <= 2  # the added line is no black border


def test_the_file_says_how_to_play_it():
    with av.open(io.BytesIO(mp4_bytes(coloured(frames=12), fps=6))) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 6
        assert float(stream.duration * stream.time_base) == pytest.approx(2.0)
        assert stream.codec_context.colorspace == 1  # BT.709, said and not guessed


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 16, 16, 3), np.float32),
        np.zeros((16, 16, 3), np.uint8),
        np.zeros((2, 3, 16, 16), np.uint8),
        np.zeros((0, 16, 16, 3), np.uint8),
    ],
)
def test_what_is_no_video_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"uint8 \(frames, height, width, 3\)"):
        write_mp4(tmp_path / "a.mp4", wrong)
    with pytest.raises(ValueError, match="uint8"):
        contact_sheet(tmp_path / "a.png", [("a", wrong)])
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_video(tmp_path, monkeypatch):
    write_mp4(tmp_path / "a.mp4", coloured())
    before = (tmp_path / "a.mp4").read_bytes()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_mp4(tmp_path / "a.mp4", coloured(frames=3))
    assert (tmp_path / "a.mp4").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


LONG = "a red disc moves to the right " * 30
UNBROKEN = "word" * 60


@pytest.mark.slow
@pytest.mark.parametrize("text", ["short", LONG, UNBROKEN, "σ→0 " * 40, "", "a\nb\t c"])
@pytest.mark.parametrize("lines", [1, 3])
def test_wrapped_text_fits(text, lines):
    font = font_of(14)
    wrapped = wrap(text, font, 190, lines)
    assert len(wrapped) <= lines
    assert all(font.getlength(line) <= 190 for line in wrapped)
    shown, whole = "".join("".join(wrapped).split()), "".join(text.split())
    assert shown == whole or (shown.endswith("…") and whole.startswith(shown[:-1]) and len(shown) > 15)


@pytest.mark.slow
def test_contact_sheet_shows_the_frames_in_order(tmp_path):
    """Frame f of both videos is one colour: read it back from the page, left to right."""
    shades = [np.full((1, 16, 16, 3), 10 * f, np.uint8) for f in range(20)]
    rising, falling = np.concatenate(shades), np.concatenate(shades[::-1])
    contact_sheet(tmp_path / "s.png", [(LONG, rising), (UNBROKEN, torch.from_numpy(falling))], columns=4, title=LONG)
    page = np.asarray(Image.open(tmp_path / "s.png")).astype(int)
    found = []
    for row in page:
        # Cells are the only runs of one colour 128 pixels long, besides the white paper.
        edges = np.flatnonzero(np.any(np.diff(row, axis=0), axis=1))
        cells = [row[end, 0] for start, end in pairwise(edges) if end - start == 128]
        if len(cells) == 4 and (not found or found[-1] != cells):
            found.append(cells)
    assert found == [[0, 60, 130, 190], [190, 130, 60, 0]]  # frames 0, 6, 13, 19


@pytest.mark.slow
def test_labels_keep_clear_of_the_frames(tmp_path):
    """Black frames on white paper: any ink of a label among them or any frame over a label would show."""
    black = np.zeros((8, 16, 16, 3), np.uint8)
    sheets = []
    for label in (LONG, LONG.upper()):
        contact_sheet(tmp_path / "s.png", [(label, black), (label, black)])
        sheets.append(np.asarray(Image.open(tmp_path / "s.png")).astype(int))
    differ = np.flatnonzero(np.any(sheets[0] != sheets[1], axis=(0, 2)))
    frames = np.flatnonzero(np.all(sheets[0] == 0, axis=2).sum(axis=0) >= 256)  # columns where both frames are
    assert differ.max() < frames.min() - 5
    rows = np.flatnonzero(np.any(sheets[0][:, :190] < 128, axis=(1, 2)))
    assert np.diff(rows).max() > 15  # the first label ends before the second begins


def test_a_sheet_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="0 videos"):
        contact_sheet(tmp_path / "s.png", [])
