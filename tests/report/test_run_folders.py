"""Run folders as they are found: torn, old, moved, resumed, going on or dead; settings, cost and alarms told right."""

import json
import shutil

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from run_folders import BEGAN, SECONDS, as_lines, make_rows, make_run, stamp
from sage_grpo.cli import app
from sage_grpo.config import GaugeConfig
from sage_grpo.report.compare import differing
from sage_grpo.report.cost import cost_of
from sage_grpo.report.figures import alarms_of
from sage_grpo.report.page import PageTable, render_page
from sage_grpo.report.run_page import make_report
from sage_grpo.runs.read import read_run, read_runs
from sage_grpo.training.drift_gauge import DriftGauge
from walk import Walk


def page_of(*folders, now=None):
    return make_report(read_runs(folders, now), price=2.5, smooth=0.9, megabytes=24.0).page


def tables(page):
    return {item.title: item for section in page.sections for item in section.items if isinstance(item, PageTable)}


def test_torn_lines_are_left_out_and_told(tmp_path):
    folder = make_run(tmp_path / "run", make_rows(20))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[4] = lines[4][:50]
    lines[9] = "[1, 2]"
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:70]]))
    run = read_run(folder)
    assert run.torn == 3
    assert run.steps.tolist() == [s for s in range(1, 20) if s not in (5, 10)]
    assert any("3 lines of metrics.jsonl could not be read" in notice for notice in page_of(folder).notices)
    assert not page_of(make_run(tmp_path / "whole")).notices


def test_what_is_not_finite_is_a_gap_and_moves_no_other_value(tmp_path):
    rows = make_rows(20, grad_norm=lambda step: float("nan") if step == 7 else 1.0)
    folder = make_run(tmp_path / "run", rows)
    (folder / "metrics.jsonl").write_text(
        (folder / "metrics.jsonl").read_text().replace('"clip_frac": 0.', '"clip_frac": NaN, "x": 0.', 1)
    )
    report = make_report([read_run(folder)], price=1, smooth=0.9, megabytes=1)
    (curve,) = next(s for s in report.page.sections if s.key == "curves").items[7].curves
    assert curve.name == "gradient"
    assert np.isnan(curve.values[6])
    assert [v for i, v in enumerate(curve.values) if i != 6] == pytest.approx([1.0] * 19)
    Walk(render_page(report.page))


def test_a_step_that_is_there_twice_counts_once(tmp_path):
    folder = make_run(tmp_path / "run", [*make_rows(10), *make_rows(10, clip_frac=lambda step: 0.25)[7:]])
    run = read_run(folder)
    assert run.steps.tolist() == list(range(1, 11))
    assert run.column("clip_frac")[7:].tolist() == [0.25] * 3


@pytest.mark.parametrize(
    ("end", "rows", "late", "state"),
    [
        ({"stop_reason": None, "error": None}, 20, 0, "finished"),
        ({"stop_reason": "SIGTERM received", "error": None}, 12, 0, "stopped"),
        ({"error": "RewardFailure: 20 of 32 rewards failed"}, 12, 0, "failed"),
        (None, 20, 1e6, "finished"),
        (None, 12, 30, "running"),
        (None, 12, 1e6, "silent"),
        (None, 0, 30, "running"),
        (None, 0, 1e6, "silent"),
    ],
)
def test_state(tmp_path, end, rows, late, state):
    folder = make_run(tmp_path / "run", make_rows(rows), "run.iterations=20", end=False)
    if end:
        (folder / "end.json").write_text(json.dumps(end))
    run = read_run(folder, now=BEGAN + SECONDS * rows + late)
    assert run.state[0] == state
    assert f"{rows} of 20 iterations" in run.state[1]
    assert next((v for v in (end or {}).values() if v), "") in run.state[1]
    assert run.state[1] in " ".join(Walk(render_page(page_of(folder, now=BEGAN + SECONDS * rows + late))).texts)


def test_old_bare_and_moved_runs(tmp_path):
    """Neither phases nor spreads nor prompts nor an environment; elsewhere than it was written; unknown settings."""
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("seconds/", "steps/log", "drift/"))} for row in make_rows(20)
    ]
    folder = make_run(tmp_path / "old", rows, end=False)
    for path in [folder / "environment.json", *folder.glob("samples/*/prompts.json")]:
        path.unlink()
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    del settings["gauge"], settings["kl"]["band"]
    settings["kl"]["forgotten"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    shutil.move(folder, tmp_path / "elsewhere")
    new = make_run(tmp_path / "new")
    page = page_of(tmp_path / "elsewhere", new)
    text = " ".join(Walk(render_page(page)).texts)
    assert "kl.forgotten" in text
    assert "gauge.every" not in [
        row[0] for row in tables(page)["Settings that differ"].rows
    ]  # today's default is meant
    alone = page_of(tmp_path / "elsewhere")
    titles = [item.title for section in alone.sections for item in section.items if hasattr(item, "cells")]
    assert titles == ["Gradient of each timestep", "The same after the equalizer", "Clip fraction"]
    assert "video 0 · seed 0" in render_page(alone)


@pytest.mark.parametrize("gone", ["samples", "metrics.jsonl", "environment.json"])
def test_what_is_missing_is_no_obstacle(tmp_path, gone):
    folder = make_run(tmp_path / "run")
    shutil.rmtree(folder / gone) if (folder / gone).is_dir() else (folder / gone).unlink()
    text = " ".join(Walk(render_page(page_of(folder))).texts)
    told = {
        "samples": "No sample videos",
        "metrics.jsonl": "No iteration is logged yet",
        "environment.json": "process on ?",
    }
    assert told[gone] in text


def test_settings_that_differ_and_no_others(tmp_path):
    one = make_run(tmp_path / "one")
    two = make_run(tmp_path / "two", None, "kl.anchor=none", "optimizer.lr=1e-5")
    three = make_run(tmp_path / "three", None, "seed=5")
    table = tables(page_of(one, two, three))["Settings that differ"]
    assert list(table.header) == ["setting", "one", "two", "three"]
    assert [list(row) for row in table.rows] == [
        ["seed", "0 (default)", "0 (default)", "5"],
        ["kl.anchor", "moving (default)", "none", "moving (default)"],
        ["optimizer.lr", "0.0003", "1e-05 (default)", "0.0003"],
    ]
    assert differing(read_runs([one])) == []


def test_settings_changed_on_resume_are_told(tmp_path):
    folder = make_run(tmp_path / "run")
    text = (folder / "config.yaml").read_text()
    (folder / "config-1.yaml").write_text(text.replace("iterations: 20", "iterations: 40"))
    (folder / "config-10.yaml").write_text(text.replace("iterations: 20", "iterations: 60"))
    (folder / "end.json").unlink()
    assert read_run(folder).wanted == 60  # the tenth, not the one that sorts last as text
    assert any("run.iterations: 20 → 60" in notice for notice in page_of(folder).notices)


def test_pauses_are_told_and_not_paid(tmp_path):
    rows = make_rows(30)
    for row in rows[10:]:
        row["time"] += 5000  # away between 10 and 11, and started anew 15 seconds before 11 was done
    for row in rows[20:]:
        row["time"] += 9000  # nobody knows why
    folder = make_run(tmp_path / "run", rows, "parallel.processes=4", "policy.batch_size=8")
    facts = json.loads((folder / "environment.json").read_text())
    facts["started"] = stamp(rows[10]["time"] - 15)
    (folder / "environment-1.json").write_text(json.dumps(facts))
    cost = cost_of(read_run(folder), 2.5)
    assert [(g.before, g.seconds, g.why) for g in cost.gaps] == [
        (11, pytest.approx(5005), "the run was resumed"),
        (21, pytest.approx(9000), "much longer than usual"),
    ]
    assert cost.seconds == pytest.approx(30 * SECONDS - 5)
    assert cost.total == pytest.approx(cost.seconds / 3600 * 4 * 2.5)
    assert cost.phases == pytest.approx({"rollout": 240, "update": 300, "between": cost.seconds - 540})
    assert len(tables(page_of(folder))["Pauses that are not counted"].rows) == 2


def test_work_begins_with_the_last_of_two_restarts(tmp_path):
    rows = make_rows(20)
    for row in rows[10:]:
        row["time"] += 5000
    folder = make_run(tmp_path / "run", rows)
    facts = json.loads((folder / "environment.json").read_text())
    for i, seconds in enumerate((3000, 15), start=1):  # the first one was killed before it had logged anything
        facts["started"] = stamp(rows[10]["time"] - seconds)
        (folder / f"environment-{i}.json").write_text(json.dumps(facts))
    cost = cost_of(read_run(folder), 2.5)
    assert [(g.before, g.seconds) for g in cost.gaps] == [(11, pytest.approx(5005))]
    assert cost.seconds == pytest.approx(20 * SECONDS - 5)


def test_long_iterations_that_make_samples_are_work(tmp_path):
    rows = make_rows(60)
    for row in rows:
        row["time"] += 900 * (row["step"] // 10)
    cost = cost_of(read_run(make_run(tmp_path / "run", rows)), 2.5)
    assert not cost.gaps
    assert cost.seconds == pytest.approx(60 * SECONDS + 6 * 900)


def test_alarms_are_the_gauges(tmp_path):
    """Each measurement that the gauge itself would ring at, and no other; unbroken stretches are one."""
    rng = np.random.default_rng(3)
    measures = {
        "base_error": (1.0, 0.5),
        "diversity": (0.7, 0.3),
        "saturation": (0.1, 0.1),
        "exposure": (0.0, 0.2),
        "motion": (0.6, 0.3),
        "kl_initial": (1e-3, 5e-4),
    }
    rows = make_rows(60)
    for row in rows:
        if row["step"] % 5 == 1:
            row |= {
                f"drift/{name}": abs(float(rng.normal(*law))) * (-1 if name == "exposure" and row["step"] > 30 else 1)
                for name, law in measures.items()
            }
    folder = make_run(tmp_path / "run", rows, "gauge.kl_initial=1.2e-3", "gauge.diversity=0.6")
    gauge = DriftGauge(GaugeConfig(kl_initial=1.2e-3, diversity=0.6))
    rung = {row["step"]: gauge.check({n: row[f"drift/{n}"] for n in measures}) for row in rows if row["step"] % 5 == 1}
    told = alarms_of(read_run(folder))
    assert sum(a.times for a in told) == sum(len(texts) for texts in rung.values()) > 10
    everything = [text for texts in rung.values() for text in texts]
    for alarm in told:
        assert alarm.text in everything
        assert (alarm.last - alarm.first) // 5 + 1 == alarm.times
        values = [
            r[f"drift/{alarm.measure}"] for r in rows if alarm.first <= r["step"] <= alarm.last and r["step"] % 5 == 1
        ]
        assert alarm.worst in values
        assert abs(alarm.worst) == (min if alarm.measure in ("diversity", "motion") else max)(map(abs, values))
    (table,) = [t for t in tables(page_of(folder)).values() if "crossed" in t.title]
    assert [row[1] for row in table.rows] == [a.measure for a in told]


def test_many_alarms_are_capped(tmp_path):
    rows = make_rows(1200, 1)
    for row in rows:
        if row["step"] % 5 == 1:
            row["drift/base_error"] = 1.0 + row["step"] // 5 % 2
    page = page_of(make_run(tmp_path / "run", rows))
    (table,) = [t for t in tables(page).values() if "crossed" in t.title]
    assert len(table.rows) == 50
    assert "The first 50 of 120" in table.note


def test_runs_of_equal_name_are_told_apart(tmp_path):
    folders = [make_run(tmp_path / name / "run", None, f"seed={i}") for i, name in enumerate("ab")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run"]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("runs/frist", "did you mean {root}/runs/first?"),
        ("runs", "runs inside: {root}/runs/first {root}/runs/second"),
        ("runs/first/samples", "it lies in the run {root}/runs/first: give that"),
        ("runs/first/metrics.jsonl", "is a file, not a run; it lies in the run {root}/runs/first"),
        ("empty", "give a folder that `sage-grpo train` wrote"),
        ("nowhere/at/all", "there is no {root}/nowhere/at/all"),
        ("runs/first runs/first", "is given twice"),
        ("broken", "is not valid YAML"),
    ],
)
def test_what_is_no_run(tmp_path, asked, hint):
    for name in ("first", "second"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "broken")
    (tmp_path / "broken" / "config.yaml").write_text("a: [1")
    paths = [str(tmp_path / part) for part in asked.split()]
    result = CliRunner().invoke(app, ["report", *paths, "--out", str(tmp_path / "x.html")], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert hint.format(root=tmp_path.resolve()) in result.output.replace("\n", "")
    assert not (tmp_path / "x.html").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    folder = make_run(tmp_path / "run")
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "x.html")
    result = CliRunner().invoke(app, ["report", str(folder), "--out", out], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "name another place" in " ".join(result.output.split())


def test_a_log_that_is_being_written_is_read(tmp_path):
    """Cut at every byte of its last two lines."""
    rows = make_rows(6, 2)
    folder = make_run(tmp_path / "run", rows, end=False)
    whole = as_lines(rows).encode()
    start = len(as_lines(rows[:4]))
    for cut in range(start, len(whole), 31):
        (folder / "metrics.jsonl").write_bytes(whole[:cut])
        assert read_run(folder).iterations == whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
