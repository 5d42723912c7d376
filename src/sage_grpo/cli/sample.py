"""`sage-grpo sample`: look at what a model makes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sage_grpo.cli.arguments import TrustCode, whole_seed, writable_folder
from sage_grpo.cli.errors import user_errors


def sample(
    source: Annotated[Path, typer.Argument(help="Run folder, one of its checkpoints, or a recipe (untrained model).")],
    prompt: Annotated[list[str] | None, typer.Option(help="A text; give it several times for several videos.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="First frame, one per prompt, for image-to-video.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for videos and contact sheet.", callback=writable_folder)] = Path(
        "samples"
    ),
    seed: Annotated[int, typer.Option(help="Prompt i gets seed + i.", callback=whole_seed)] = 0,
    count: Annotated[int, typer.Option(help="Without --prompt: how many of the recipe's own prompts.", min=1)] = 4,
    compare: Annotated[bool, typer.Option("--compare", help="The untrained model next to it, same seeds.")] = False,
    last: Annotated[bool, typer.Option("--last", help="The last weights, even if the run averaged them.")] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the files as JSON.")] = False,
) -> None:
    """Make videos with a run, a checkpoint or an untrained recipe, at fixed seeds and without noise on the way.

    Example: `sage-grpo sample runs/lab --prompt "a red circle moving left" --compare`
    """
    from rich.console import Console
    from rich.progress import Progress

    from sage_grpo.config import ConfigError

    with user_errors():
        from sage_grpo.core.protocols import Prompt
        from sage_grpo.inference.sample import open_source, sample_videos, untrained, write_samples
        from sage_grpo.training import build

        if image and len(image) != len(prompt or []):
            raise ConfigError(f"{len(image)} --image for {len(prompt or [])} --prompt; give one image a prompt")
        missing = [str(path) for path in image or [] if not path.is_file()]
        if missing:
            raise ConfigError(f"there is no image {missing[0]}; --image is the path of a picture on this computer")
        console = Console(stderr=as_json)
        with console.status("loading the model"):
            sources = [open_source(source, average=not last, trust_code=trust_code)]
            sources += [untrained(sources[0])] if compare else []
        if image and not sources[0].model.needs_image:
            name = sources[0].config.model.type
            raise ConfigError(
                f"{name} makes videos from text alone; leave --image out, or name an image-to-video recipe"
            )
        columns = [{"image": str(path)} for path in image or []]
        texts = [Prompt(text, columns[i] if columns else {}) for i, text in enumerate(prompt or [])]
        prompts = texts or list(build.build_prompts(sources[0].config)(0, count))
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("sampling", total=len(prompts) * len(sources))
            videos = [
                (s.name, sample_videos(s, prompts, seed, emit=lambda: progress.advance(task)))
                for s in reversed(sources)
            ]
        files = write_samples(out, prompts, videos, seed)
    if as_json:
        import json

        print(json.dumps({"out": str(out), "seed": seed, "prompts": [p.text for p in prompts], "files": files}))
        return
    made = len(files) - 1
    console.print(f"Wrote {made} {'video' if made == 1 else 'videos'} and {out}/sheet.png", highlight=False)
