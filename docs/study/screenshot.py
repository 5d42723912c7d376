"""The picture of docs/study.md, on clips that are made here: `python docs/study/screenshot.py [FOLDER FOR MORE]`.

The pair is a clip and its blurred copy. Needs playwright and a Chromium that is installed.
"""

import shutil
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from sage_grpo.evaluation.audit.degrade import degrade
from sage_grpo.evaluation.audit.natural import FPS, clip, scenes
from sage_grpo.evaluation.study.make import DIMENSIONS, choose_pairs, from_folders, make_study
from sage_grpo.evaluation.study.plan import Dimension, read_plan
from sage_grpo.evaluation.study.server import Server
from sage_grpo.evaluation.study.store import Store
from sage_grpo.videos import write_mp4

HERE = Path(__file__).parent


def make_videos(folder: Path) -> dict[str, Path]:
    for name, scene in scenes().items():
        if name in ("train", "water", "ball", "books"):
            frames = clip(name, scene)
            for source, shown in (("sharp", frames), ("soft", degrade("blur", frames))):
                write_mp4(folder / source / f"{name}.mp4", shown, FPS)
                (folder / source / f"{name}.txt").write_text(scene.prompt)
    return {name: folder / name for name in ("sharp", "soft")}


def shoot(page: Page, url: str, folder: Path, name: str) -> None:
    page.goto(url)
    page.wait_for_selector("#intro:not([hidden])")
    page.screenshot(path=folder / f"{name}-intro.png", full_page=True)
    page.locator("#consent").check()
    page.locator("#start").click()
    page.wait_for_selector("fieldset:not(:disabled)")
    page.keyboard.press("1")
    page.screenshot(path=folder / f"{name}-rate.png", full_page=True)
    while page.locator("#rate").is_visible():
        page.wait_for_selector("fieldset:not(:disabled)")
        for key in "123":
            page.keyboard.press(key)
        page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"{name}-thanks.png")


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        sources, items = from_folders(make_videos(Path(work)))
        asked = [Dimension(key=key, name=name, question=text) for key, (name, text) in DIMENSIONS.items()]
        study = Path(work) / "study"
        make_study(
            study,
            sources,
            items,
            choose_pairs(sources, None, None),
            prompts=4,
            dimensions=asked,
            checks=1,
            per_rater=None,
            max_failed=0.34,
            seed=1,
            title="Which video is better?",
        )
        server = Server("127.0.0.1", 0, study, Store(study, *read_plan(study)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, height in ((1280, 860), (390, 844)):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                shoot(page, server.url, folder, f"{scheme}-{width}")
        server.shutdown()
    shutil.copy(folder / "light-1280-rate.png", HERE / "page.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as none:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else none))
