"""The HTML report: well-formed, sealed from the network, safe for any text, and its charts true to the data."""

import base64
import math
import os
import re
import xml.etree.ElementTree as ET
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from unittest.mock import Mock

import pytest

from sage_grpo.report.page import Chart, Curve, Headline, Page, PageTable, VideoPair, render_page, write_page
from sage_grpo.report.svg import draw_chart
from walk import Walk

NAN, INF = math.nan, math.inf
EVIL = """</title><script>alert("x")</script><img src=x onerror='alert(1)'> & "quoted" ]]> {{ 7*7 }}"""
CURVE = Curve("reward", [0, 5, 10], [-1.0, 0.5, 3.0])
PAGE = Page(
    title="Lab",
    summary="First paragraph.\n\nSecond paragraph.",
    headlines=[Headline("Reward", "+0.75 ± 0.08", "9.9 standard errors")],
    charts=[Chart("Reward", "iteration", "mean reward", [CURVE], "One seed.")],
    pairs=[VideoPair("a red square", b"\x00before", b"\xffafter", "reward −0.2", "reward +0.6")],
    tables=[PageTable("Monitors", ["Monitor", "Base"], [["Diversity", "0.92"], ["Drift", "−1.2 ± 0.1"]], "Paired.")],
    footer="sage-grpo lab --seed 7",
)


def svg_of(*curves, log_y=False):
    return ET.fromstring(f"<div>{draw_chart(Chart('t', 'x', 'y', curves, log_y=log_y), 'k')}</div>")


def ticks_of(*curves, log_y=False):
    return [e.text for e in svg_of(*curves, log_y=log_y).iter("text") if e.get("class") == "tick"]


def points_of(element):
    return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]


def plot_of(root):
    box = next(e for e in root.iter("rect") if e.get("class") == "plot")
    x, y, w, h = (float(box.get(k)) for k in ("x", "y", "width", "height"))
    return x, x + w, y, y + h


def test_well_formed_with_every_part():
    walk = Walk(render_page(PAGE))
    ids = [attrs["id"] for _, attrs in walk.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = " ".join(a["aria-labelledby"] for _, a in walk.seen if "aria-labelledby" in a).split()
    assert set(named) <= set(ids)
    levels = [int(tag[1]) for tag, _ in walk.seen if re.fullmatch(r"h[1-6]", tag)]
    assert [i for i, level in enumerate(levels) if level == 1] == [0]
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert {a["scope"] for a in walk.all("th")} == {"col", "row"}
    text = " ".join(" ".join(walk.texts).split())
    parts = ("Second paragraph.", "± 0.08", "9.9 standard errors", "One seed.", "reward −0.2", "Paired.", "--seed 7")
    assert [part for part in parts if part not in text] == []


def test_nothing_is_fetched():
    html = render_page(PAGE)
    loads = {"src", "href", "poster", "srcset", "data", "action", "xlink:href"}
    assert {value[:5] for _, attrs in Walk(html).seen for name, value in attrs.items() if name in loads} == {"data:"}
    assert not re.search(r"https?://|url\(|@import", html)
    assert "default-src 'none'" in html


def test_the_script_is_the_one_its_policy_allows():
    html = render_page(PAGE)
    script = re.search(r"<script>(.*?)</script>", html, re.S).group(1)
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in Walk(html).all("meta") if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "prefers-reduced-motion" in script


def test_videos_carry_their_bytes_and_labels():
    before, after = Walk(render_page(PAGE)).all("video")
    assert [base64.b64decode(v["src"].split(",", 1)[1]) for v in (before, after)] == [b"\x00before", b"\xffafter"]
    for video, when in ((before, "Before"), (after, "After")):
        assert video["src"].startswith("data:video/mp4;base64,")
        assert {"autoplay", "muted", "loop", "playsinline", "controls"} <= video.keys()
        assert video["aria-label"] == f"{when}: a red square"


def test_text_stays_text():
    chart = Chart(EVIL, EVIL, EVIL, [Curve(EVIL, [0, 1], [0, 1]), Curve("b", [0, 1], [1, 2])], EVIL)
    page = Page(
        EVIL,
        EVIL,
        [Headline(EVIL, EVIL, EVIL)],
        [chart],
        [VideoPair(EVIL, b"", b"", EVIL, EVIL)],
        [PageTable(EVIL, [EVIL, EVIL], [[EVIL, EVIL]], EVIL)],
        EVIL,
    )
    walk = Walk(render_page(page))
    assert len(walk.all("script")) == 1
    assert not walk.all("img")
    assert not [a for _, a in walk.seen if any(name.startswith("on") for name in a)]
    assert {tag for tag, _ in walk.seen} == {tag for tag, _ in Walk(render_page(PAGE)).seen} | {"ul", "li"}
    assert walk.all("video")[0]["aria-label"] == f"Before: {EVIL}"
    assert sum(EVIL in text for text in walk.texts) >= 16


def test_empty_lists_hide_their_sections():
    bare = Walk(render_page(Page("Lab", "")))
    assert not {"section", "dl", "video", "svg", "table", "h2", "footer", "button"} & {tag for tag, _ in bare.seen}
    assert [a.get("id") for a in Walk(render_page(PAGE)).all("h2")] == ["videos", "curves", "tables", None]


def test_extremes_touch_the_edges_and_the_middle_is_linear():
    root = svg_of(CURVE)
    left, right, top, bottom = plot_of(root)
    points = points_of(next(root.iter("polyline")))
    expected = [(left, bottom), ((left + right) / 2, bottom + (top - bottom) * 1.5 / 4), (right, top)]
    for got, want in zip(points, expected, strict=True):
        assert got == pytest.approx(want, abs=0.02)


def test_band_widens_the_axis_and_surrounds_the_line():
    root = svg_of(Curve("c", [0, 1], [1.0, 2.0], [0.0, 1.5], [2.0, 4.0]))
    left, right, top, bottom = plot_of(root)
    data = [(left, 2.0), (right, 4.0), (right, 1.5), (left, 0.0)]
    for got, (x, v) in zip(points_of(next(root.iter("polygon"))), data, strict=True):
        assert got == pytest.approx((x, bottom + (top - bottom) * v / 4), abs=0.02)


def test_values_behind_a_curve_lie_under_all_lines_and_are_not_filled():
    """The style sheet fills what it colours by class: a line says for itself that it is none to fill."""
    curves = [
        Curve(name, [0, 1], [v, v], behind=[(0, v - 2), (0.5, NAN), (0.6, v), (1, v + 2)])
        for name, v in (("a", 1), ("b", 2))
    ]
    root = svg_of(*curves)
    assert {e.get("fill") for e in root.iter("polyline")} == {"none"}
    kinds = [e.get("class") for e in root.iter("g")]
    assert kinds == ["behind c0", "behind c1", "c0", "c1"]
    _, right, top, _ = plot_of(root)
    points = [points_of(e) for e in root.findall(".//g[@class='behind c1']/polyline")]
    assert points[-1][-1] == pytest.approx((right, top), abs=0.06)  # the faint line is part of the range
    assert len(points) == 2  # and has its gap


def test_limits_are_lines_within_the_range_and_in_words():
    root = ET.fromstring(f"<div>{draw_chart(Chart('t', 'x', 'y', [CURVE], limits=[('upper limit', 7.0)]), 'k')}</div>")
    left, right, top, _ = plot_of(root)
    line = next(e for e in root.iter("line") if e.get("class") == "limit")
    assert [float(line.get(k)) for k in ("x1", "y1", "x2", "y2")] == pytest.approx([left, top, right, top], abs=0.02)
    assert "upper limit: 7." in next(root.iter("desc")).text


def test_log_axis_spaces_decades_evenly():
    kl = Curve("kl", [0, 1, 2, 3, 4], [1e-4, 1e-3, 1e-1, 0.0, -5.0])
    root = svg_of(kl, log_y=True)
    _, _, top, bottom = plot_of(root)
    heights = [y for _, y in points_of(next(root.iter("polyline")))]
    assert heights == pytest.approx([bottom, bottom + (top - bottom) / 3, top], abs=0.02)
    assert {"10⁻⁴", "0.001", "0.01", "0.1"} <= set(ticks_of(kl, log_y=True))
    band = svg_of(Curve("kl", [0, 1], [1e-2, 1.0], [-1.0, 0.5], [0.1, 2.0]), log_y=True)
    assert max(y for _, y in points_of(next(band.iter("polygon")))) == pytest.approx(plot_of(band)[3])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_gaps(bad):
    values = [1.0, 2.0, bad, 3.0, bad, 4.0, 5.0, 6.0]
    root = svg_of(Curve("c", list(range(8)), values, [v - 1 for v in values], [v + 1 for v in values]))
    assert [len(points_of(e)) for e in root.iter("polyline")] == [2, 3]
    assert len(list(root.iter("circle"))) == 1  # the 3.0 alone between gaps
    assert [(len(points_of(e)), e.get("stroke")) for e in root.iter("polygon")] == [(4, "none"), (2, None), (6, "none")]
    assert "6 of 8 values drawn" in next(root.iter("desc")).text


@pytest.mark.parametrize("values", [[], [NAN, NAN], [INF, -INF], [7.0, 7.0], [0.0, 0.0], [1e-320, 0.0], [1e300, 1.0]])
@pytest.mark.parametrize("log_y", [False, True])
def test_no_data_is_too_odd(values, log_y):
    text = ET.tostring(svg_of(Curve("c", list(range(len(values))), values), log_y=log_y), encoding="unicode")
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', text)


def test_ticks_are_round_and_whole_steps_stay_whole():
    labels = ticks_of(Curve("c", [0, 1, 2, 3], [-0.31, 0.0, 0.4, 0.93]))
    assert labels == ["−0.2", "0", "0.2", "0.4", "0.6", "0.8", "0", "1", "2", "3"]
    assert {"1.0×10⁻⁶", "0.5×10⁻⁶"} <= set(ticks_of(Curve("lr", [0, 1], [0.0, 1.5e-6])))
    assert {"−20,000", "0", "20,000"} <= set(ticks_of(Curve("c", [0, 1], [-30000.0, 30000.0])))


def test_names_stand_beside_the_lines_or_in_a_list():
    apart = svg_of(Curve("up", [0, 1], [0, 1]), Curve("down", [0, 1], [1, 0]))
    assert not list(apart.iter("li"))
    heights = {e.text: float(e.get("y")) for e in apart.iter("text") if e.text in ("up", "down")}
    assert heights["up"] < heights["down"]
    crowd = svg_of(*[Curve(f"seed {i}", [0, 1], [0, 1 + i / 1e3]) for i in range(9)])
    early = svg_of(Curve("a", [0, 1], [0, 1]), Curve("stopped", [0, 0.5], [0, 1]))
    assert [len(list(root.iter("li"))) for root in (crowd, early)] == [9, 2]
    looks = {(e.get("stroke"), e.get("stroke-dasharray")) for li in crowd.iter("li") for e in li.iter("line")}
    assert len(looks) == 9
    assert len({dash for _, dash in looks}) == 5  # in print and to the colour-blind the dash tells them apart


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="one length"):
        Curve("c", [0, 1], [0])
    with pytest.raises(ValueError, match="both low and high"):
        Curve("c", [0], [0], low=[0])
    with pytest.raises(ValueError, match="row 1 has 1"):
        PageTable("t", ["a", "b"], [["1", "2"], ["3"]])


def luminance(colour):
    code = colour.lstrip("#") if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    channels = [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast(mode):
    style = files("sage_grpo.report").joinpath("page.html").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w+)", re.findall(r":root \{(.*?)\}", style, re.S)[mode]))
    need = {"ink": 4.5, "soft": 4.5, "accent": 3, "edge": 3, **{f"c{i}": 3 for i in range(7)}}
    for name, ratio in need.items():
        for ground in ("paper", "card"):
            dark, light = sorted(luminance(colours[key]) for key in (name, ground))
            assert (light + 0.05) / (dark + 0.05) >= ratio, f"{name} on {ground}"


def test_write_is_whole_deterministic_and_readable(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    write_page(PAGE, path)
    first = path.read_bytes()
    assert first.decode() == render_page(PAGE)
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    write_page(PAGE, path)
    assert path.read_bytes() == first
    write_page(Page("lone \ud800 surrogate", ""), tmp_path / "odd.html")
    assert b"lone &#55296; surrogate" in (tmp_path / "odd.html").read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        write_page(Page("Other", ""), path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
