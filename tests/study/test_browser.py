"""The whole study in a real browser: three raters who judge by what they see, against figures worked out by hand."""

import json
import shutil
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect, sync_playwright

from sage_grpo.evaluation.study.server import Server
from sage_grpo.evaluation.study.store import Store
from study.material import PROMPTS, SOURCES, rater_of, write_eval

pytestmark = pytest.mark.slow

expect.set_options(timeout=30_000)  # a busy machine
ORDER = ["visual", "motion", "semantic"]
METHOD, ALPHA, BETA = SOURCES
# What each rater thinks of the method against a baseline, by prompt: (w)on, (s)ame, (l)ost in ORDER.
KEY = {
    ALPHA: {0: ["www", "wws", "wsl"], 1: ["wwl", "wsl", "sll"], 2: ["lll"] * 3},
    BETA: {0: ["wls", "wls", "wwl"], 1: ["wls", "lls", "wsl"], 2: ["lll"] * 3},
}
# By hand, raters 0 and 1 (six answers a cell): won, same, lost.
COUNTS = {
    ("visual", ALPHA): (5, 1, 0),
    ("visual", BETA): (5, 0, 1),
    ("motion", ALPHA): (3, 2, 1),
    ("motion", BETA): (1, 1, 4),
    ("semantic", ALPHA): (1, 1, 4),
    ("semantic", BETA): (0, 4, 2),
}
RATES = {
    ("visual", ALPHA): 5.5 / 6,
    ("visual", BETA): 5 / 6,
    ("motion", ALPHA): 4 / 6,
    ("motion", BETA): 1.5 / 6,
    ("semantic", ALPHA): 1.5 / 6,
    ("semantic", BETA): 2 / 6,
}
# With rater 2, who always prefers the baseline (nine answers a cell).
RATES_OF_ALL = {pair: rate * 6 / 9 for pair, rate in RATES.items()}
LOOK = """side => {
  const video = document.getElementById(side), canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const pen = canvas.getContext("2d");
  pen.drawImage(video, 0, 0, 64, 64);
  const data = pen.getImageData(0, 0, 64, 64).data, sum = [0, 0, 0], squares = [0, 0, 0];
  for (let i = 0; i < data.length; i++) if (i % 4 < 3) { sum[i % 4] += data[i]; squares[i % 4] += data[i] ** 2; }
  const n = data.length / 4, mean = sum.map(s => s / n);
  return [mean, mean.map((m, c) => Math.sqrt(Math.max(0, squares[c] / n - m * m)))];
}"""


@pytest.fixture(scope="module")
def browser():
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert chromium, "the study's page is tested in Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()


class Running:
    """`sage-grpo study run` as a user starts it; it can be ended and started again at the same address."""

    def __init__(self, study):
        self.study, self.port = study, "0"
        self.start()

    def start(self):
        command = [sys.executable, "-m", "sage_grpo", "study", "run", str(self.study), "--port", self.port, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.port = self.url.rstrip("/").rpartition(":")[2]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        rest = self.process.communicate(timeout=20)[0]
        assert self.process.returncode == 0
        return json.loads(rest)


@pytest.fixture
def study(tmp_path):
    folder = write_eval(tmp_path / "eval")
    out = tmp_path / "study"
    cli("study", "make", folder, "--method", METHOD, "--checks", "2", "--max-failed", "0.4", "--out", out)
    return out


def cli(*words):
    done = subprocess.run(
        [sys.executable, "-m", "sage_grpo", *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Person:
    """Looks at the two videos and answers by KEY; knows nothing of the server."""

    def __init__(self, browser, url, which, **options):
        self.which, self.heard, self.changed = which, [], False
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("requestfinished", lambda request: self.heard.append(request.response()))
        self.page.on("pageerror", lambda error: pytest.fail(f"script error: {error}"))
        self.page.goto(url)

    def consent(self):
        assert self.page.locator("#start").is_disabled()
        self.page.locator("#consent").check()
        self.page.locator("#start").click()
        self.page.wait_for_selector("#rate:not([hidden])")

    def position(self):
        here, whole = self.page.locator("#where").inner_text().split(",")[0].split(" of ")
        return int(here), int(whole)

    def watch(self):
        self.page.wait_for_selector("fieldset:not(:disabled)")

    def see(self, side):
        mean, spread = self.page.evaluate(LOOK, side)
        return max(SOURCES, key=lambda name: mean[list(SOURCES).index(name)]), sum(spread) / 3

    def choices(self):
        """Sides for the three dimensions: by colour, or of two alike the one that is not degraded."""
        (left, calm_left), (right, calm_right) = self.see("left"), self.see("right")
        if left == right:
            whole = 48  # the spread of a clip as it was made; a flat copy has none, a noisy one more
            good = "left" if abs(calm_left - whole) < abs(calm_right - whole) else "right"
            bad = {"left": "right", "right": "left"}[good]
            return [bad if self.which == 2 else good] * 3
        other = right if left == METHOD else left
        mine = "left" if left == METHOD else "right"
        text = self.page.locator("#prompt").inner_text()
        verdicts = KEY[other][self.which][list(PROMPTS.values()).index(text)]
        theirs = {"left": "right", "right": "left"}[mine]
        return [{"w": mine, "s": "same", "l": theirs}[verdict] for verdict in verdicts]

    def by_mouse(self, choices):
        for key, choice in zip(ORDER, choices, strict=True):
            self.page.locator(f'#dimension-{key} label:has(input[value="{choice}"])').click()
        self.page.locator("#next").click()

    def by_keys(self, choices):
        digits = {"left": "1", "same": "2", "right": "3"}
        arrows = {"left": "ArrowLeft", "same": "ArrowDown", "right": "ArrowRight"}
        for i, choice in enumerate(choices):
            self.page.keyboard.press((digits, arrows)[i % 2][choice])
        self.page.keyboard.press("Enter")

    def answer(self, how):
        self.watch()
        here = self.position()[0]
        how(self.choices())
        moved = "n => !document.querySelector('#thanks').hidden || where.textContent.startsWith(n + ' of')"
        self.page.wait_for_function(moved, arg=here + 1)

    def finish(self, how, until=None):
        while self.page.locator("#rate").is_visible() and (until is None or self.position()[0] < until):
            self.answer(how)
        if until is None:
            expect(self.page.locator("#saved")).to_contain_text("answers are saved")

    def rows(self, study):
        token = self.page.evaluate("Object.entries(localStorage).find(([key]) => key.endsWith('-token'))[1]")
        return [json.loads(line) for line in (study / "answers" / f"{rater_of(token)}.jsonl").read_text().splitlines()]


def no_overflow(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def first_rater(person, study):
    """Keyboard only; loses the line in the middle, and once the server's reply."""
    person.consent()
    assert person.page.evaluate("document.activeElement.id") == "prompt"
    assert person.page.locator("#next").is_disabled()
    person.finish(person.by_keys, until=3)
    person.watch()
    person.context.set_offline(True)
    person.answer(person.by_keys)  # the next pair was loaded before
    expect(person.page.locator("#trouble")).to_contain_text("No connection")
    assert len(person.rows(study)) == 3  # the rater and two answers
    person.context.set_offline(False)
    expect(person.page.locator("#trouble")).to_be_hidden()
    expect(person.page.locator("#trouble")).to_have_text("")
    statuses = []

    def lost(route):
        statuses.append(route.fetch().status)  # the server has it; the page never hears of it
        route.abort()

    person.page.route("**/api/answers/*", lost, times=1)
    person.answer(person.by_keys)
    person.finish(person.by_keys)
    assert statuses == [200]
    rows = person.rows(study)[1:]
    assert [row["position"] for row in rows] == list(range(9))


def second_rater(person, study, running):
    """Mouse; goes back and changes an answer, reloads, and is there when the server is restarted."""
    person.consent()
    person.watch()
    wrong = [{"left": "right", "same": "left", "right": "same"}[choice] for choice in person.choices()]
    person.by_mouse(wrong)
    person.watch()
    person.page.locator("#back").click()
    person.page.wait_for_function("document.querySelector('#where').textContent.startsWith('1 of')")
    checked = person.page.eval_on_selector_all("[type=radio]:checked", "all => all.map(one => one.value)")
    assert checked == wrong
    person.page.wait_for_function("left.readyState > 1 && right.readyState > 1")
    person.by_mouse(person.choices())
    person.finish(person.by_mouse, until=5)
    person.page.reload()
    person.page.wait_for_selector("#rate:not([hidden])")
    assert person.position() == (5, 9)
    person.watch()
    assert running.end()["finished"] == 1
    person.answer(person.by_mouse)
    expect(person.page.locator("#trouble")).to_be_visible()
    running.start()
    expect(person.page.locator("#trouble")).to_be_hidden()
    person.finish(person.by_mouse)
    rows = person.rows(study)[1:]
    assert [row["position"] for row in rows] == [0, 0, *range(1, 9)]
    assert [row["revision"] for row in rows] == [1, 2] + [1] * 8


def third_rater(person):
    """A phone; tells the degraded copies to be better."""
    assert no_overflow(person.page)
    person.consent()
    assert no_overflow(person.page)
    heights = "all => all.map(one => one.getBoundingClientRect().height)"
    assert min(person.page.locator(".choices label, button:visible").evaluate_all(heights)) >= 48
    left, right = (person.page.locator(f"#{side}").bounding_box() for side in ("left", "right"))
    assert left["y"] + left["height"] <= right["y"]  # one above the other
    person.finish(person.by_mouse)
    assert no_overflow(person.page)


def assert_blind(person, study):
    plan = json.loads((study / "plan.json").read_text())
    ids = [comparison["id"] for comparison in plan["comparisons"] + plan["checks"]]
    names = [*SOURCES, *PROMPTS, *plan["videos"], *plan["videos"].values(), *ids, "swapped", '"repeat', str(study)]
    replies = [person.page.content().encode()]
    for reply in person.heard:
        replies.append(f"{reply.url} {reply.headers}".encode())
        if reply.url.startswith("http") and "/videos/" not in reply.url:
            replies.append(reply.body())
    assert len(replies) > 20
    text = b"\n".join(replies)
    assert [name for name in names if name.encode() in text] == []
    videos = [path.read_bytes() for path in (study / "videos").iterdir()]
    assert [name for name in SOURCES if any(name.encode() in data for data in videos)] == []
    assert not any(b"x264" in data or b"Lavf" in data for data in videos)
    lengths = {len(reply.url) for reply in person.heard if "/api/videos/" in reply.url}
    assert len(lengths) == 2  # left and right; positions have one digit


def test_three_raters_and_the_answer_key(browser, study, tmp_path):
    running = Running(study)
    try:
        people = [Person(browser, running.url, 0)]
        first_rater(people[0], study)
        assert_blind(people[0], study)
        people.append(Person(browser, running.url, 1))
        second_rater(people[1], study, running)
        people.append(Person(browser, running.url, 2, viewport={"width": 390, "height": 844}, has_touch=True))
        third_rater(people[2])
        assert running.end() == {"raters": 3, "finished": 3, "answers": 27, "asked": 27}
    finally:
        running.process.kill()
    results = cli("study", "results", study, "--out", tmp_path / "out")
    assert results == json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["raters"] == {"joined": 3, "answered": 3, "kept": 2, "left_out": 1, "finished": 3}
    bad = rater_of(people[2].page.evaluate("Object.entries(localStorage).find(([key]) => key.endsWith('-token'))[1]"))
    assert {check["rater"]: check["left_out"] for check in results["checks"] if check["left_out"]} == {
        bad: "failed 2 of 2 checks"
    }
    for part, rates in (("kept", RATES), ("all", RATES_OF_ALL)):
        for (key, other), rate in rates.items():
            (pair,) = [row for row in results[part]["dimensions"][key]["pairs"] if row["second"] == other]
            assert pair["rate"]["value"] == pytest.approx(rate, abs=1e-12)
            assert pair["rate"]["low"] <= rate <= pair["rate"]["high"]
            if part == "kept":
                assert (pair["wins"], pair["ties"], pair["losses"]) == COUNTS[key, other]
    assert results["kept"]["repeats"] == {"same": 6, "of": 6}
    assert "| methodzeta vs. baselinealpha | 91.7 [" in (tmp_path / "out" / "results.md").read_text()
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "out" / "results.html").as_uri())
    assert no_overflow(page)


def test_a_link_that_is_not_known_starts_anew(browser, make):
    folder, plan, plan_hash = make()
    store = Store(folder, plan, plan_hash)
    server = Server("127.0.0.1", 0, folder, store)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    page = browser.new_page()
    page.goto(server.url + "#notatoken")
    expect(page.locator("#intro")).to_be_visible()
    assert "notatoken" not in page.url
    token = store.join()
    page.goto("about:blank")
    page.goto(f"{server.url}#{token}")  # a personal link, on another device
    expect(page.locator("#where")).to_contain_text("1 of 9")
    assert token not in page.url
    page.locator("summary").click()
    assert page.locator("#link").inner_text() == f"{server.url}#{token}"
    calm = browser.new_context(reduced_motion="reduce").new_page()
    calm.goto(f"{server.url}#{token}")
    expect(calm.locator("#replay")).to_be_enabled()
    calm.wait_for_timeout(700)  # longer than the videos are
    assert calm.locator("fieldset:disabled").count() == 3
    calm.keyboard.press("1")
    assert calm.locator("[type=radio]:checked").count() == 0
    calm.keyboard.press("Space")  # nothing moves before it is asked to
    expect(calm.locator("fieldset:disabled")).to_have_count(0)
    store.target_raters = 1
    other = browser.new_context().new_page()
    other.goto(server.url)
    expect(other.locator("#why")).to_contain_text("Enough people")
    server.shutdown()
    server.server_close()
    store.close()
