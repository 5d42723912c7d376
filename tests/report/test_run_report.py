"""`sage-grpo report` against the log it was made from: every figure, cell and video; and how large it may grow."""

import base64
import io
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from run_folders import SERIES, make_rows, make_run
from sage_grpo.cli import app
from sage_grpo.report.curves import POINTS, smoothed
from sage_grpo.report.heat import COLUMNS, draw_heat, palette
from sage_grpo.report.page import Chart, HeatMap, PageTable, render_page
from sage_grpo.report.run_page import make_report
from sage_grpo.runs.read import read_runs
from sage_grpo.statistics import effect
from walk import Walk

EVIL = """</title><script>alert("x")</script><img src=x onerror='alert(1)'> & {{ 7*7 }}"""


def invoke(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "100", "NO_COLOR": "1"})


def figures(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def build(*folders, smooth=0.9, megabytes=24.0, **more):
    return make_report(read_runs(folders), price=2.5, smooth=smooth, megabytes=megabytes, **more)


def items(page, kind):
    return {item.title: item for section in page.sections for item in section.items if isinstance(item, kind)}


def exponential_mean(values, decay):
    """By its definition: a sum with falling weights, over the sum of the weights."""
    weights = decay ** np.arange(len(values), dtype=float)
    return [
        float((values[: i + 1][::-1] * weights[: i + 1]).sum() / weights[: i + 1].sum()) for i in range(len(values))
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "first", make_rows(20))


def test_page_is_whole_sealed_and_in_order(run):
    page = run / "report.html"
    assert f"Open {page}" in invoke(run).stdout.replace("\n", "")
    html = page.read_text()
    walk = Walk(html)
    assert html.startswith("<!doctype html>")
    links = [a["href"] for a in walk.all("a")]
    ids = [a["id"] for _, a in walk.seen if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    assert links[0] == "#main"  # the skip link comes first
    loads = {"src", "poster", "srcset", "data", "action", "xlink:href"}
    assert {v[:5] for tag, a in walk.seen for k, v in a.items() if k in loads or (k == "href" and tag != "a")} == {
        "data:"
    }
    assert not re.search(r"https?://|url\(|@import", html)
    assert "script-src 'sha256-" in html
    assert not [a for _, a in walk.seen if any(name.startswith("on") for name in a)]
    levels = [int(tag[1]) for tag, _ in walk.seen if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    landmarks = [tag for tag, _ in walk.seen if tag in ("header", "nav", "main", "footer")]
    assert landmarks == ["header", "nav", "main", "footer"]
    for picture in walk.all("svg"):
        assert picture.get("aria-hidden") == "true" or set(picture["aria-labelledby"].split()) <= set(ids)


@pytest.mark.slow
def test_curves_equal_the_log(run):
    rows = make_rows(20)
    told = figures(run, "--out", run / "x.html", "--smooth", "0.8")["curves"]
    mean = np.array([row["reward/mean"] for row in rows])
    assert told["Reward"]["mean"]["steps"] == list(range(1, 21))
    assert told["Reward"]["mean"]["values"] == pytest.approx(exponential_mean(mean, 0.8))
    assert np.subtract(told["Reward"]["mean"]["high"], told["Reward"]["mean"]["values"]) == pytest.approx(1.0)
    assert told["Parts of the reward"]["TA"]["values"] == pytest.approx(
        exponential_mean(np.array([row["reward/TA"] for row in rows]), 0.8)
    )
    assert told["Weight λ of the KL"]["λ"]["values"] == [0.5] * 20
    drift = told["Drift: KL to the initial policy"]["kl_initial"]
    assert (drift["steps"], drift["values"]) == ([1, 6, 11, 16], pytest.approx([1e-4, 6e-4, 11e-4, 16e-4]))
    raw = figures(run, "--out", run / "x.html", "--smooth", "0")["curves"]
    assert raw["Reward"]["mean"]["values"] == pytest.approx(mean)
    assert raw["Clip fraction"]["clipped"]["values"] == pytest.approx([row["clip_frac"] for row in rows])


def test_the_mean_forgets_by_iterations_not_by_lines():
    values, steps = np.array([0.0, np.nan, 1.0]), np.array([1.0, 3.0, 6.0])
    got = smoothed(values, steps, 0.9)
    assert np.isnan(got[1])
    assert got[[0, 2]] == pytest.approx([0.0, 1 / (1 + 0.9**5)])


def test_lines_on_the_page_are_the_figures(run):
    """Read the drawn polyline back through the ticks of its axis."""
    told = figures(run, "--out", run / "x.html")["curves"]["Clip fraction"]["clipped"]["values"]
    html = (run / "x.html").read_text()
    drawing = ET.fromstring(re.search(r"<svg(?:(?!</svg>).)*>Clip fraction</title>.*?</svg>", html, re.S).group(0))
    ticks = [e for e in drawing.iter("text") if e.get("class") == "tick" and e.get("text-anchor") == "end"]
    scale = np.polyfit([float(e.get("y")) for e in ticks], [float(e.text) for e in ticks], 1)
    lines = [g for g in drawing.iter("g") if g.find("title") is not None]
    points = lines[0].find("polyline").get("points").split()
    # a label stands a third of its height below the value that it names
    got = [np.polyval(scale, float(p.split(",")[1]) + 5.0) for p in points]
    assert got == pytest.approx(told, abs=0.002)
    behind = next(g for g in drawing.iter("g") if "behind" in g.get("class", "")).find("polyline").get("points").split()
    raw = [np.polyval(scale, float(p.split(",")[1]) + 5.0) for p in behind]
    assert raw == pytest.approx([row["clip_frac"] for row in make_rows(20)], abs=0.005)


def test_headlines_are_the_figures(run):
    rows = make_rows(20)
    told = figures(run, "--out", run / "x.html", "--price", "3")["runs"][0]
    first, last = (np.mean([row["reward/mean"] for row in part]) for part in (rows[:4], rows[-4:]))
    assert (told["reward"]["first"], told["reward"]["last"]) == pytest.approx((first, last))
    assert told["seconds"] == pytest.approx(400)
    assert told["cost"] == pytest.approx(400 / 3600 * 3)
    assert told["phases"] == pytest.approx({"rollout": 160, "update": 200, "between": 40})
    text = " ".join(Walk((run / "x.html").read_text()).texts)
    for part in (f"{first:+.2f} → {last:+.2f}".replace("-", "−"), "20 of 20", "6.7 min", "$0.33", "c0ffee", "2.13.0"):
        assert part in text, part


@pytest.mark.parametrize("series", SERIES)
def test_heat_map_cells_equal_the_log(run, series):
    titles = ["Gradient of each timestep", "The same after the equalizer", "Spread of the ratio", "Clip fraction"]
    told = figures(run, "--out", run / "x.html")["heat"][titles[SERIES.index(series)]]
    wanted = [[row.get(f"steps/{series}/{t:03d}") for row in make_rows(20)] for t in range(4)]
    assert told["cells"] == wanted
    assert (told["timesteps"], told["first"], told["last"]) == ([0, 1, 2, 3], list(range(1, 21)), list(range(1, 21)))


def test_colours_of_a_heat_map_are_its_cells(run):
    heat = items(build(run).page, HeatMap)["Clip fraction"]
    root = ET.fromstring(draw_heat(heat, "k"))
    picture = next(e for e in root.iter("image") if e.get("class") == "cells").get("href")
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(picture.split(",", 1)[1]))).convert("RGBA")).astype(int)
    assert np.array_equal(pixels[..., 3] > 0, np.isfinite(heat.cells))
    nearest = np.abs(pixels[..., None, :3] - palette().astype(int)).sum(-1).argmin(-1)
    got = heat.low + nearest / 255 * (heat.high - heat.low)
    known = np.isfinite(heat.cells)
    assert got[known] == pytest.approx(heat.cells[known], abs=(heat.high - heat.low) / 200)
    brightness = palette().astype(float) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > -0.5).all()  # order survives grey print and any colour vision
    header, table = heat.table()
    assert header[1:] == ["1–3", "4–6", "7–9", "10–12", "13–14", "15–16", "17–18", "19–20"]
    assert float(table[2][1]) == pytest.approx(np.nanmean(heat.cells[2, :3]), rel=5e-3)


def test_before_and_after_the_equalizer_share_their_colours(run):
    heats = items(build(run).page, HeatMap)
    before, after = heats["Gradient of each timestep"], heats["The same after the equalizer"]
    assert (before.low, before.high) == (after.low, after.high)


@pytest.mark.slow
def test_thousands_of_iterations_stay_small_and_quick(tmp_path):
    count = 4500
    folder = make_run(tmp_path / "long", make_rows(count, 20))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    began = time.process_time()
    report = build(folder)
    html = render_page(report.page)
    assert time.process_time() - began < 5
    assert len(html) < 1_000_000
    for chart in items(report.page, Chart).values():
        for curve in chart.curves:
            assert len(curve.values) <= POINTS
            assert len(curve.behind) <= 2 * POINTS
    reward = items(report.page, Chart)["Reward"].curves[0]
    logged = [row["reward/mean"] for row in rows]
    assert {min(logged), max(logged)} <= {value for _, value in reward.behind}  # no peak is lost
    assert "15 iterations" in items(report.page, Chart)["Reward"].note
    heat = items(report.page, HeatMap)["Clip fraction"]
    assert heat.cells.shape == (20, 237)
    assert heat.cells.shape[1] <= COLUMNS
    third = [row["steps/clip_frac/007"] for row in rows[38:57] if "steps/clip_frac/007" in row]
    assert (heat.first[2], heat.last[2]) == (39, 57)
    assert heat.cells[7, 2] == pytest.approx(np.mean(third))
    assert "mean of 19 iterations" in heat.note


def test_videos_are_the_files_first_and_last_among_them(tmp_path):
    folder = make_run(tmp_path / "run", make_rows(20), samples=range(0, 200, 10), prompts=[f"p{i}" for i in range(9)])
    told = figures(folder)
    videos = Walk((folder / "report.html").read_text()).all("video")
    data = [base64.b64decode(v["src"].split(",", 1)[1]).decode().rstrip(".") for v in videos]
    assert data == [f"run {i} {p} " for p in range(6) for i in (0, 40, 80, 110, 150, 190)]
    assert videos[1]["aria-label"] == "iteration 40: p0 · seed 0"
    assert len(told["videos"]) == 36
    note = " ".join(Walk((folder / "report.html").read_text()).texts)
    assert "6 of 20 iterations and 6 of 9 prompts" in note


@pytest.mark.parametrize(("megabytes", "shown"), [(1.0, 36), (0.24, 24), (0.12, 12), (0.05, 4), (0.02, 2), (0.005, 0)])
def test_videos_are_capped_and_what_is_left_out_is_told(tmp_path, megabytes, shown):
    folder = make_run(
        tmp_path / "run", make_rows(20), samples=range(0, 200, 10), prompts=[f"p{i}" for i in range(9)], size=10_000
    )
    report = build(folder, megabytes=megabytes)
    files = report.figures["videos"]
    assert len(files) <= shown
    assert sum(10_000 for _ in files) <= megabytes * 1e6
    assert (len(files) >= 2) == (shown >= 2)
    assert f"{megabytes:g} MB (--megabytes)" in next(s.note for s in report.page.sections if s.key == "videos")
    if files:
        assert {"000000", "000190"} <= {path.split("/")[-2] for path in files}


def test_text_of_a_prompt_or_name_stays_text(tmp_path):
    folder = make_run(tmp_path / "run <b>", make_rows(20), f"model.negative_prompt={json.dumps(EVIL)}", prompts=[EVIL])
    (folder / "end.json").write_text(json.dumps({"stop_reason": EVIL}))
    walk = Walk(render_page(build(folder, make_run(tmp_path / "other", prompts=[EVIL])).page))
    assert len(walk.all("script")) == 1
    assert not walk.all("img")
    assert not walk.all("b")
    assert not [a for _, a in walk.seen if any(name.startswith("on") for name in a)]
    assert sum(EVIL in text for text in walk.texts) >= 3
    assert any(EVIL in video["aria-label"] for video in walk.all("video"))


def test_a_page_is_handed_on_and_its_secrets_are_not(tmp_path):
    options = '{url: "http://me:hunter2@host/x", api_token: hunter2, token_variable: MY_TOKEN, max_tokens: 77}'
    rewards = f"rewards=[{{type: http, options: {options}}}]"
    folders = [
        make_run(tmp_path / name, None, rewards, "model.path=/home/grace/base", f"kl.anchor={anchor}")
        for name, anchor in (("a", "none"), ("b", "fixed"))
    ]
    told = figures(*folders, "--out", tmp_path / "x.html")
    html = (tmp_path / "x.html").read_text()
    alone = render_page(build(folders[0]).page)
    for text in (html, alone, json.dumps(told)):
        assert "hunter2" not in text
        assert "grace" not in text
    assert "MY_TOKEN" in alone
    assert "max_tokens: 77" in alone
    assert "~/base" in alone


def test_seeds_of_unequal_length_are_told(tmp_path):
    folders = [
        make_run(tmp_path / f"s{s}", make_rows(n, seed=s), f"seed={s}", "run.iterations=20")
        for s, n in enumerate((20, 12, 20))
    ]
    report = build(*folders)
    assert items(report.page, Chart)["Reward"].curves[0].steps[-1] == 12
    assert any("shortest run, iteration 12" in notice for notice in report.page.notices)


def test_runs_keep_their_colours_and_videos_stand_side_by_side(tmp_path):
    rows = make_rows(20)
    bare = [{k: v for k, v in row.items() if k != "clip_frac"} for row in rows]
    folders = [
        make_run(tmp_path / name, log, f"optimizer.lr={lr}")
        for name, log, lr in (("a", rows, 1e-4), ("b", bare, 1e-3), ("c", rows, 1e-2))
    ]
    report = build(*folders)
    charts = items(report.page, Chart)
    assert [(c.name, c.look) for c in charts["Reward"].curves] == [("a", 0), ("b", 1), ("c", 2)]
    assert [(c.name, c.look) for c in charts["Clip fraction"].curves] == [("a", 0), ("c", 2)]
    html = render_page(report.page)
    drawn = re.search(r"<svg(?:(?!</svg>).)*>Clip fraction</title>.*?</svg>", html, re.S).group(0)
    assert {"c0", "c2"} == set(re.findall(r'class="(c\d)"', drawn))
    strip = next(s for s in report.page.sections if s.key == "videos").items[0]
    assert [name for name, _ in strip.rows] == ["a", "b", "c"]
    assert [clip.mp4.split()[0] for _, clips in strip.rows for clip in clips] == [b"a"] * 3 + [b"b"] * 3 + [b"c"] * 3
    assert any("no evidence" in notice for notice in report.page.notices)


def test_seeds_are_pooled_with_their_interval(tmp_path):
    logs = [make_rows(20, seed=s) for s in range(3)]
    folders = [make_run(tmp_path / f"s{s}", log, f"seed={s}") for s, log in enumerate(logs)]
    report = build(*folders, smooth=0.0)
    assert report.figures["groups"] == {"s0 (3 seeds)": ["s0", "s1", "s2"]}
    (curve,) = items(report.page, Chart)["Clip fraction"].curves
    for i in range(20):
        wanted = effect([log[i]["clip_frac"] for log in logs])
        assert (curve.values[i], curve.low[i], curve.high[i]) == pytest.approx((wanted.mean, wanted.low, wanted.high))
    assert not any("no evidence" in notice for notice in report.page.notices)
    assert "n = 3" in next(s.note for s in report.page.sections if s.key == "curves")
    pair = items(build(*folders[:2], smooth=0.0).page, Chart)["Clip fraction"].curves[0]
    two = sorted(log[4]["clip_frac"] for log in logs[:2])
    assert [pair.low[4], pair.high[4]] == pytest.approx(two)


def test_one_seed_twice_is_not_two_runs(tmp_path):
    rows = make_rows(20)
    folders = [make_run(tmp_path / name, rows, "seed=7") for name in ("a", "b")]
    report = build(*folders)
    assert len(report.figures["groups"]) == 2
    assert any("not independent" in notice for notice in report.page.notices)


def test_hours_as_axis(tmp_path):
    slow = make_run(tmp_path / "slow", make_rows(20), "parallel.processes=2", "policy.batch_size=16")
    fast = make_run(tmp_path / "fast", make_rows(20))
    charts = items(build(slow, fast, by_hours=True).page, Chart)
    ends = {curve.name: curve.steps[-1] for curve in charts["Reward"].curves}
    assert ends == pytest.approx({"slow": 2 * 400 / 3600, "fast": 400 / 3600})
    assert charts["Reward"].x_label == "process hours"


def test_use_of_the_machines_is_that_of_the_log(tmp_path):
    rows = make_rows(20)
    for i, row in enumerate(rows):
        row |= {"speed/goodput": 0.5 + i / 100, "speed/mfu": 0.25, "speed/peak_memory": 40e9 + i}
        row |= {"speed/late/score": 0.4, "speed/late_rank/score": 3.0 if i % 4 else 1.0}
    cells = dict(items(build(make_run(tmp_path / "a", rows)).page, PageTable)["Use of the machines"].rows)
    assert cells == {
        "goodput": "69%",
        "MFU, median": "25.0%",
        "peak memory of a device": "40.0 GB",
        "slowest in score": "0.4 s over the median; most often process 3 (75%)",
    }


@pytest.mark.real_start
@pytest.mark.slow
def test_a_report_needs_no_torch(run):
    code = f"import sys; from sage_grpo.cli import app; app(['report', {str(run)!r}], standalone_mode=False); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
