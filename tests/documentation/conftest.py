import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from once import once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The site as `make docs` builds it, in a folder of its own."""
    pytest.importorskip("zensical")

    def build(folder):
        shutil.copy(ROOT / "mkdocs.yml", folder)
        for name in ("docs", "src"):  # not links: the tool would follow them, and build over there
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        tool = str(Path(sys.executable).with_name("zensical"))
        subprocess.run([tool, "build", "--strict"], cwd=folder, check=True, capture_output=True)

    return once(tmp_path_factory, "documentation", build) / "site"


@pytest.fixture(scope="module")
def browser():
    tool = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium:
        pytest.skip("pages are looked at in Chromium: apt-get install chromium")
    with tool.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()
