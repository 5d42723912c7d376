"""Retake the pictures of docs/report.md: trains four small runs, six minutes on one core. `make report-pictures`.

Needs Chromium: apt-get install chromium.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

HERE = Path(__file__).parent
RUNS = {
    "dual": ["seed=0"],
    "dual-1": ["seed=1"],
    "dual-2": ["seed=2"],
    "unbound": ["seed=0", "kl.anchor=none", "kl.old_weight=0", "optimizer.lr=3e-3"],
}
WIDTH = 1100


def train(folder: Path) -> Path:
    """The page of the four runs."""
    for name, settings in RUNS.items():
        common = [f"run.out={folder / name}", "run.iterations=30", "run.sample_every=10"]
        subprocess.run([sys.executable, "-m", "sage_grpo", "train", "lab-paper", *settings, *common], check=True)
    page = folder / "compared.html"
    runs = [str(folder / name) for name in RUNS]
    subprocess.run([sys.executable, "-m", "sage_grpo", "report", *runs, "--out", str(page)], check=True)
    return page


def shot(page: Page, first: Locator, last: Locator, path: Path) -> None:
    """What lies between the top of one thing and the bottom of another."""
    top, end = first.bounding_box(), last.bounding_box()
    assert top, "the page lacks its first part"
    assert end, "the page lacks its last part"
    area = {"x": 0, "y": max(0, top["y"] - 16), "width": WIDTH, "height": end["y"] + end["height"] - top["y"] + 32}
    page.screenshot(path=path, clip=area, full_page=True)


def stack(parts: list[Path], path: Path) -> None:
    pictures = [Image.open(part).convert("RGB") for part in parts]
    whole = Image.new("RGB", (WIDTH, sum(p.height for p in pictures)), "white")
    y = 0
    for picture in pictures:
        whole.paste(picture, (0, y))
        y += picture.height
    whole.save(path, optimize=True)


def photograph(document: Path, folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1400})
        page.goto(document.as_uri())
        page.wait_for_timeout(1500)  # videos show a frame

        def under(heading: str, what: str) -> Locator:
            return page.locator(f"section:has(h2:text-is('{heading}')) {what}")

        shot(page, page.locator("h1"), under("Curves", ".card").nth(1), HERE / "report_compared.png")
        parts = [folder / "steps.png", folder / "videos.png"]
        shot(page, under("Timestep by timestep", "h2"), under("Timestep by timestep", ".card").nth(1), parts[0])
        shot(page, under("Videos over time", "h2"), under("Videos over time", ".card").nth(0), parts[1])
        stack(parts, HERE / "report_timesteps_videos.png")
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)  # a folder that is kept
        document = folder / "compared.html"
        photograph(document if document.exists() else train(folder), Path(temporary))
