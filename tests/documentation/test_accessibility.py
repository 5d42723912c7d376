"""axe-core finds nothing to mend: on the site, in every kind of report and on the pages of a study.

Its rules are those of WCAG 2 (A, AA) and its own good practice.
"""

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

import torch
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import expect

from run_folders import make_rows, make_run
from sage_grpo.config import load_recipe
from sage_grpo.evaluation.page import make_page as eval_page
from sage_grpo.evaluation.results import EvaluationResults
from sage_grpo.evaluation.study.make import DIMENSIONS, choose_pairs, from_eval, make_study
from sage_grpo.evaluation.study.plan import Dimension, read_plan
from sage_grpo.evaluation.study.present import page as study_page
from sage_grpo.evaluation.study.results import study_results
from sage_grpo.evaluation.study.server import Server
from sage_grpo.evaluation.study.store import Store
from sage_grpo.evaluation.videos import Folder
from sage_grpo.lab.before_after import BeforeAfter
from sage_grpo.lab.shapes import run as lab
from sage_grpo.lab.shapes.evaluate import Evaluation
from sage_grpo.report.animation import before_after
from sage_grpo.report.page import render_page
from sage_grpo.report.run_page import make_report
from sage_grpo.runs.read import read_runs
from study.material import write_eval
from sweeps import further

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
TYPICAL = ["index.html", "concepts.html", "api/trainer.html"]  # code; formulas and tables; signatures
OTHERS = sorted({str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")} - {*TYPICAL})
ALIKE = ("adr/", "audit/", "claims/")  # folders of pages with the same elements: the first stands for the others
OF_COLOUR = ["color-contrast", "link-in-text-block"]  # rules that another colour scheme may break
# a colour on its way is neither the old nor the new; a sheet made by script, as policies of pages forbid any other
STILL = """const sheet = new CSSStyleSheet();
sheet.replaceSync("*, ::before, ::after { transition: none !important; }");
document.adoptedStyleSheets.push(sheet)"""
DARK = "document.body.dataset.mdColorScheme = 'slate'"  # as the site's button does; reports ask the system instead
# parts that are alike on all pages and of thousands of elements: typical pages are looked at with them
SHARED = ".md-header, .md-sidebar--primary, .md-footer, .katex, .doc-signature"

PATIENCE = 300_000  # ms; a busy machine

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page(color_scheme="light", reduced_motion="reduce")  # videos that play cost more than axe
    page.set_default_timeout(PATIENCE)
    return page


def violations(page, **more):
    """What axe-core finds: rule, element, and why."""
    # without preloading: it would wait for every video, and serves rules on sound and on locked orientation alone
    options = {"resultTypes": ["violations"], "preload": False, **more}
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def in_the_light(page):
    page.evaluate(STILL)
    return violations(page)


def in_the_dark(page):
    """By the rules of colour; the others were asked in the light."""
    page.evaluate(STILL)
    page.emulate_media(color_scheme="dark")
    page.evaluate(DARK)
    found = violations(page, runOnly=OF_COLOUR)
    page.emulate_media(color_scheme="light")
    return found


def in_both_schemes(page):
    return in_the_light(page) + [f"dark, {fault}" for fault in in_the_dark(page)]


WIDE, NARROW = (1280, in_both_schemes), (390, in_the_light)  # a colour is the same on a phone


def show(page, html):
    page.goto("about:blank")
    page.set_content(html, wait_until="domcontentloaded")  # not until every video is there


@pytest.mark.parametrize(("width", "faults"), [WIDE, NARROW])
@pytest.mark.parametrize("name", TYPICAL)
def test_typical_pages_of_the_site_whole(page, built, name, width, faults):
    page.set_viewport_size({"width": width, "height": 844})
    page.goto((built / name).as_uri())
    assert faults(page) == []


def but_for_colour(page):
    """Markdown has no colours of its own: what typical pages show holds for others."""
    return violations(page, rules={rule: {"enabled": False} for rule in OF_COLOUR})


def first_of_its_kind(name):
    folder = next((folder for folder in ALIKE if name.startswith(folder)), None)
    return folder is None or name == next(other for other in OTHERS if other.startswith(folder))


@pytest.mark.parametrize("faults", [but_for_colour, further(in_both_schemes)])
@pytest.mark.parametrize("name", [name if first_of_its_kind(name) else further(name) for name in OTHERS])
def test_what_every_page_of_the_site_adds(page, built, name, faults):
    page.set_viewport_size({"width": 1280, "height": 844})
    page.goto((built / name).as_uri())
    page.evaluate("parts => document.querySelectorAll(parts).forEach(part => part.remove())", SHARED)
    assert faults(page) == []


def report_of_runs(*names):
    def make(folder):
        runs = [make_run(folder / name, make_rows(20, seed=i), f"seed={i}") for i, name in enumerate(names)]
        return make_report(read_runs(runs), price=2.5, smooth=0.9, megabytes=24.0).page

    return make


def evaluation(seed):
    draw = torch.Generator().manual_seed(seed)
    return Evaluation(
        prompts=["a red circle moving left", "a blue square moving up"] * 4,
        videos=torch.randint(256, (8, 4, 32, 32, 3), generator=draw).to(torch.uint8),
        scores=torch.randn(8, 3, generator=draw),
        distance=torch.rand(8, generator=draw),
        correct=torch.rand(8, 3, generator=draw) < 0.8,
        diversity=0.9,
        pixel_diversity=0.9,
    )


def report_of_the_laboratory(folder):
    make_run(folder)
    config = load_recipe("lab", [f"run.out={folder}"])
    before, after = evaluation(0), evaluation(1)
    rewards = lab.Rewards(before.scores.sum(1), after.scores.sum(1))
    made = BeforeAfter(config, before, after, 20, 60.0, 60.0)
    base = {"2": lab.BaseMeasures.of(before)}
    result = lab.compare(made, rewards, base, folder / "report.html")
    return lab.make_page(result, before, after, rewards, config, before_after(lab.chosen(before, after)))


def report_of_an_evaluation(folder):
    results = EvaluationResults.from_json(json.loads((DOCS / "eval" / "results.json").read_text()))
    return eval_page(results, {results.reference: {}}, [], [], Folder(folder), "sage-grpo eval lab")


def a_study(folder):
    sources, items = from_eval(write_eval(folder / "eval"))
    asked = [Dimension(key=key, name=name, question=question) for key, (name, question) in DIMENSIONS.items()]
    pairs = choose_pairs(sources, "methodzeta", None)
    make_study(
        folder / "study",
        sources,
        items,
        pairs,
        prompts=32,
        dimensions=asked,
        checks=2,
        per_rater=None,
        max_failed=0.34,
        seed=0,
        title="Which is better?",
    )
    return folder / "study"


def answer_all(store, token):
    rater = store.find(token)
    for position in range(len(rater.showings)):
        store.save(rater, position, dict.fromkeys(DIMENSIONS, "left"), 1, 1500)


def results_of_a_study(folder):
    study = a_study(folder)
    store = Store(study, *read_plan(study))
    answer_all(store, store.join())
    store.close()
    return study_page(study_results(study), "sage-grpo study results")


REPORTS = {
    "run": report_of_runs("first"),
    "comparison": report_of_runs("first", "second"),
    "laboratory": report_of_the_laboratory,
    "evaluation": report_of_an_evaluation,
    "study": results_of_a_study,
}


@pytest.mark.parametrize(
    ("kind", "width", "faults"),
    [
        *((kind, *WIDE) for kind in REPORTS),
        ("run", *NARROW),
        *(further(kind, *NARROW) for kind in REPORTS if kind != "run"),
    ],
)
def test_reports(page, tmp_path, kind, width, faults):
    page.set_viewport_size({"width": width, "height": 844})
    show(page, render_page(REPORTS[kind](tmp_path / "work")))
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert faults(page) == []


def test_the_report_that_comes_with_the_site(page):
    page.set_viewport_size({"width": 1280, "height": 844})
    show(page, (DOCS / "eval" / "report.html").read_text())
    assert in_the_light(page) == []  # in the dark as any evaluation's


@pytest.mark.parametrize(("width", "faults"), [WIDE, NARROW])
def test_pages_of_a_study(browser, tmp_path, width, faults):
    study = a_study(tmp_path)
    store = Store(study, *read_plan(study))
    server = Server("127.0.0.1", 0, study, store)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    page = browser.new_page(viewport={"width": width, "height": 844})
    found = {}

    def look(name):
        found[name] = faults(page)

    page.goto(server.url)
    expect(page.locator("#intro")).to_be_visible()
    look("start")
    page.locator("#consent").check()
    look("consent")
    page.locator("#start").click()
    expect(page.locator("#replay")).to_be_enabled()
    look("videos")
    expect(page.locator("fieldset:disabled")).to_have_count(0)
    page.locator("label:has(input[value=left])").first.click()
    page.locator("summary").click()
    look("questions")
    token = store.join()
    answer_all(store, token)
    page.goto("about:blank")
    page.goto(f"{server.url}#{token}")
    expect(page.locator("#thanks")).to_be_visible()
    look("thanks")
    store.target_raters = 1
    elsewhere = browser.new_page()
    elsewhere.goto(server.url)
    expect(elsewhere.locator("#sorry")).to_be_visible()
    found["sorry"] = faults(elsewhere)
    server.shutdown()
    server.server_close()
    store.close()
    assert found == {name: [] for name in found}


def test_planted_faults_are_found(page):
    sound = '<html lang="en"><title>t</title><main><h1>h</h1>{}</main>'
    faults = {
        "image-alt": '<img src="data:,">',
        "color-contrast": '<p style="color: #999; background: #fff">pale</p>',
        "empty-table-header": "<table><tr><th></th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>",
    }
    show(page, sound.format("<p>text</p>"))
    assert violations(page) == []
    for rule, fault in faults.items():
        show(page, sound.format(fault))
        assert [line.split(":")[0] for line in violations(page)] == [rule]
