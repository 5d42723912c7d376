"""One stage of a rehearsal at full size, as a process: `-m sage_grpo.preflight.rehearsal.stage_worker NAME FOLDER`."""

import gc
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from sage_grpo.config import RecipeConfig
from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise
from sage_grpo.distributed.device import HOST
from sage_grpo.inference.export import export_run
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.preflight.rehearsal.full_size import RECIPE, Stage
from sage_grpo.preflight.rehearsal.toy import PROMPTS, Rehearsal, StandIn, find_prompts
from sage_grpo.registry import load_trusted_recipe, resolve_model
from sage_grpo.training.trainer import Trainer
from sage_grpo.weights.prepare import storage_dtypes

POOL = 2**22  # random numbers that weights are filled with, over and over: speed is what is rehearsed


def resident() -> int:
    """Return the bytes of memory that this process holds now. Systems without /proc tell only the peak."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return most()


def most() -> int:
    """Return the peak memory of this process in bytes, since its start or the last `forget_most`."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_most() -> None:
    """Reset the peak that `most` returns. Where the system cannot do this, the peak includes what came before."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def timed(stage: Stage, name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    stage.seconds[name] = round(time.perf_counter() - started, 2)


def random_weights(part: nn.Module) -> None:
    """Fill a network in place with random weights like those of a new network, but much faster.

    Weights of norms are 1, biases are 0, and matrices are small.
    """
    pool = 0.02 * torch.randn(POOL, generator=torch.Generator().manual_seed(0))
    part.to_empty(device=HOST)
    with torch.no_grad():
        for name, weight in part.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
                continue
            for piece in torch.split(weight.view(-1), POOL):
                piece.copy_(pool[: len(piece)])


def make_checkpoint(config: RecipeConfig, folder: Path, released: str | None) -> None:
    """Write a checkpoint with random weights and the classes of the recipe's model into `folder`.

    Networks and decoders have the size of the checkpoint `released`; encoders are tiny.
    """
    adapter: Any = resolve_model(config.model.type)
    pipe, outline = adapter.tiny(), adapter.outline(released, **storage_dtypes(config.tuning))
    for name in (*adapter.denoisers, *adapter.decoders):
        if (part := getattr(outline.pipe, name, None)) is not None:
            buffers = {key: value.clone() for key, value in part.named_buffers() if not value.is_meta}
            random_weights(part)
            for key, value in part.named_buffers():
                value.copy_(buffers[key]) if key in buffers else value.zero_()
            pipe.register_modules(**{name: part})
    pipe.save_pretrained(str(folder / "checkpoint"))


def random_conditions(model: Any) -> Any:
    """Return a function to replace `model.encode`. It makes random conditions as large as real ones.

    Equal prompts get equal conditions.
    """

    def encode(prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        blank = model.blank_condition(1)
        return {
            name: torch.cat(
                [keyed_noise(tuple(like.shape[1:]), [(prompt.text, name)], like.device).to(like) for prompt in prompts]
            )
            for name, like in blank.items()
        }

    return encode


def train(config: RecipeConfig, folder: Path, iterations: int, stage: Stage) -> None:
    run = config.run.model_copy(update={"iterations": iterations})
    prompts = find_prompts(config, folder, Rehearsal("")) or [{"prompt": text} for text in PROMPTS]
    with timed(stage, "load"):
        trainer = Trainer(
            config=config.model_copy(update={"run": run}),
            rewards=[StandIn(("brightness",))],
            prompts=prompts,
            console=Console(quiet=True),
        )
    trainer.model.encode = random_conditions(trainer.model)  # type: ignore[method-assign]
    stage.loading = most() - stage.interpreter
    forget_most()
    with timed(stage, "resume, iterate and save" if iterations > 1 else "iterate and save"):
        trainer.train()
    stage.working = most() - stage.interpreter


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    quiet_libraries()
    config, released = load_trusted_recipe(folder / RECIPE), (folder / "released.txt").read_text() or None
    resolve_model(config.model.type)  # its libraries are the interpreter's share
    stage = Stage(interpreter=resident())
    if name == "checkpoint":
        with timed(stage, "make"):
            make_checkpoint(config, folder, released)
    elif name == "export":
        with timed(stage, "export"):
            export_run(folder / "run", folder / "export", trust_code=True)
    else:
        train(config, folder, 1 if name == "train" else 2, stage)
    stage.working = stage.working or most() - stage.interpreter
    (folder / f"{name}.json").write_text(json.dumps(asdict(stage)))


if __name__ == "__main__":
    main()
