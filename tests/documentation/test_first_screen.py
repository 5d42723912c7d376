"""What a reader of one minute sees without scrolling: README and first page of the site, on a screen and a phone."""

import pytest

pytest.importorskip("playwright")
pytest.importorskip("markdown_it")

from markdown_it import MarkdownIt

from documentation.conftest import ROOT

pytestmark = pytest.mark.slow

ANSWERS = {
    "what is it": "Improve your video generator with rewards",
    "for whom": "You own a video model",
    "why this one": "importance ratio",
    "has it run on GPUs": "not yet run on GPUs",
    "how do I start": "sage-grpo lab",
}
# letters and width of a page of the place where the repository is shown
SHELF = "font: 16px/1.5 sans-serif; max-width: 830px; margin: 24px auto; padding: 0 16px"
LAST_LINE = """text => {
  const all = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (all.nextNode()) {
    if (!all.currentNode.data.includes(text)) continue;
    range.selectNodeContents(all.currentNode);
    return range.getBoundingClientRect().bottom;
  }
  return Infinity;
}"""


def readme(folder):
    """As a page, with its pictures."""
    text = MarkdownIt("commonmark").render((ROOT / "README.md").read_text("utf-8"))
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f'<base href="{ROOT.as_uri()}/"><style>img {{ max-width: 100% }}</style>'
    page = folder / "readme.html"
    page.write_text(f'{head}<body style="{SHELF}">{text}', "utf-8")
    return page


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
@pytest.mark.parametrize("place", ["README", "site"])
def test_the_first_screen_answers_five_questions(browser, built, tmp_path, place, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto((built / "index.html" if place == "site" else readme(tmp_path)).as_uri())
    below = {question: page.evaluate(LAST_LINE, answer) for question, answer in ANSWERS.items()}
    page.close()
    assert {question: bottom for question, bottom in below.items() if bottom > height} == {}


NARROW = """least => ["p", "table", ".highlight"]
  .flatMap(kind => [...document.querySelectorAll(`.doc-contents > ${kind}`)])
  .filter(part => part.getClientRects().length && part.getBoundingClientRect().width < least)
  .map(part => part.textContent.trim().slice(0, 60))"""


def test_pages_of_the_api_use_the_width_of_a_screen(browser, built):
    """Styles of ours are not for the generator's classes: one of them laid docstrings in columns of one letter."""
    page, pages = browser.new_page(viewport={"width": 1280, "height": 800}), sorted((built / "api").glob("*.html"))
    assert len(pages) >= 6
    narrow = {}
    for path in pages:
        page.goto(path.as_uri())
        narrow[path.name] = page.evaluate(NARROW, 400)
    page.close()
    assert {name: parts for name, parts in narrow.items() if parts} == {}
