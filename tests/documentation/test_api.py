"""The API pages name what exists, say something of all of it, and their formulas are drawn without a network."""

import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest

import sage_grpo

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "api").glob("*.md"))
NAMED = [(page, name) for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
KATEX = DOCS / "assets" / "katex"


def found(name: str):
    """The object of a dotted name: a module, or something in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("sage_grpo"):
                pytest.skip(f"{name} needs {error.name}")
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise LookupError(name)


@pytest.mark.parametrize(("page", "name"), NAMED, ids=lambda x: getattr(x, "stem", x))
def test_what_a_page_names_exists_and_is_documented(page, name):
    assert found(name).__doc__, f"{page.name}: {name} has no docstring"


def test_every_public_name_is_on_a_page():
    shown = [found(name) for _, name in NAMED]
    members = [value for module in shown for value in getattr(module, "__dict__", {}).values()]
    listed = [*map(id, shown), *map(id, members)]
    missing = [
        name for name in sage_grpo.__all__ if name != "__version__" and id(getattr(sage_grpo, name)) not in listed
    ]
    assert not missing, f"docs/api/ leaves out {missing}"


def test_katex_is_whole_and_fetches_nothing():
    style = (KATEX / "katex.min.css").read_text()
    fonts = set(re.findall(r"url\(([^)]+)\)", style))
    assert fonts == {str(path.relative_to(KATEX)) for path in KATEX.glob("fonts/*")}
    assert all(name.endswith(".woff2") for name in fonts)
    assert "MIT" in (KATEX / "LICENSE").read_text()


@pytest.fixture(scope="module")
def site(built):
    """The address of the site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(built))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.slow
def test_formulas_are_drawn(site, browser):
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path, least in {"api/math": 60, "equations": 8, "concepts": 4, "code": 0}.items():
        page.goto(f"{site}/{path}.html", wait_until="load")
        places = page.locator(".arithmatex")
        assert places.count() >= least, path
        assert page.locator(".arithmatex .katex").count() == places.count(), path
        assert page.locator(".katex-error").count() == 0, path
    assert asked
    assert all(url.startswith((site, "data:", "blob:")) for url in asked)
