"""A quick look at a model: videos of a run, a checkpoint or an untrained recipe, at fixed seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sage_grpo.config import RecipeConfig, load_recipe
from sage_grpo.core.protocols import Prompt, Videos
from sage_grpo.core.sampler import generate
from sage_grpo.core.video_model import VideoModel
from sage_grpo.inference.reopen import is_of_run, open_run, refuse_code
from sage_grpo.runs.folder import is_run
from sage_grpo.training import build
from sage_grpo.videos import contact_sheet, sound_of, write_frames


@dataclass(frozen=True)
class Source:
    """A model to make videos with, its recipe, and a name to show, such as `iteration 40` or `untrained`."""

    config: RecipeConfig
    model: VideoModel
    name: str


def open_source(path: Path, *, average: bool = True, overrides: Sequence[str] = (), trust_code: bool = False) -> Source:
    """Open a run folder, a checkpoint of a run, or a recipe, whose model is then untrained.

    With `trust_code`, the recipe of a run may name a model that is not built in.
    """
    if is_run(path):
        run = open_run(path, average=average, overrides=overrides, trust_code=trust_code)
        return Source(run.config, run.model, f"iteration {run.iteration}")
    config = load_recipe(path, overrides)
    if is_of_run(path) and not trust_code:
        refuse_code(config, path)
    return Source(config, build.build_model(config), "untrained")


def untrained(source: Source) -> Source:
    return replace(source, model=build.build_model(source.config), name="untrained")


def sample_videos(
    source: Source, prompts: Sequence[Prompt], seed: int, emit: Callable[[], None] = lambda: None
) -> Videos:
    """Return one video per prompt, on the host. Prompt i has the seed `seed + i`, whatever else is sampled.

    `emit` is called after each video.
    """
    made = []
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            one = source.model.render(generate(source.model, [prompt], source.config, [seed + i]))
        made.append(replace(one, frames=one.frames.cpu(), sound=None if one.sound is None else one.sound.cpu()))
        emit()
    return Videos.joined(made)


def write_samples(
    folder: Path,
    prompts: Sequence[Prompt],
    columns: Sequence[tuple[str, Videos]],
    seed: int,
) -> list[str]:
    """Write one file per video and a contact sheet of all videos into `folder`, and return the names of the files.

    Each of `columns` is a name with one video per prompt, such as those before and after training. `seed` is shown in
    the sheet's title.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, rows = [], []
    for i, prompt in enumerate(prompts):
        for name, videos in columns:
            mark = f"-{name.replace(' ', '-')}" if len(columns) > 1 else ""
            frames, sound = videos.frames[i], sound_of(videos.sound, videos.sample_rate, i)
            files.append(write_frames(folder / f"{i:02d}{mark}", frames, videos.frame_rate, sound).name)
            rows.append((f"{prompt.text} ({name})" if len(columns) > 1 else prompt.text, frames))
    title = f"{' and '.join(name for name, _ in columns)}, seeds from {seed}"
    contact_sheet(folder / "sheet.png", rows, title=title)
    return [*files, "sheet.png"]
