"""Encoding of all prompts before a run, divided among its processes. Training then needs no encoders in memory."""

import os
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console

from sage_grpo.config import RecipeConfig
from sage_grpo.core.video_model import VideoModel
from sage_grpo.data.prompts import Prompts
from sage_grpo.distributed.processes import Processes
from sage_grpo.progress import progress_of

TURN = 16  # prompts of a process between two talks with the others: nobody waits for longer


def positions(config: RecipeConfig, prompts: Prompts) -> tuple[range, range]:
    """Return the positions in `prompts` that training uses, each once, and those that the sample videos use."""
    asked = config.run.iterations * config.policy.prompts_per_iteration
    samples = config.run.samples if config.run.sample_every else 0
    return range(min(asked, len(prompts))), range(min(samples, len(prompts)))


def shares(processes: Processes | None) -> list[tuple[int, int]]:
    """Return which prompts this process encodes, as one pair (first, step) per round.

    In a round it encodes every `step`-th prompt from position `first` on. The first round divides the prompts among all
    processes. If there are several nodes, a second round divides the prompts among the processes of each node, which
    encode what their node's folder still lacks. If the nodes share a folder, it lacks nothing; otherwise, it lacks what
    other nodes encoded. If the launcher does not count the processes of a node, each process checks all prompts in the
    second round.
    """
    if processes is None:
        return [(0, 1)]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place = int(os.environ.get("LOCAL_RANK", "0")) if local > 1 else 0
    among_all = (processes.global_rank, processes.global_world)
    return [among_all] if local == processes.global_world else [among_all, (place, local)]


def encode_ahead(
    model: VideoModel,
    prompts: Prompts,
    config: RecipeConfig,
    processes: Processes | None,
    mark: Callable[[str], None],
    console: Console,
) -> None:
    """Encode and store the prompts of a run that have no stored embeddings, and return when all processes are done.

    A model whose encoders are in memory is left alone. A process loads the encoders only if it has a prompt to encode,
    and releases them at the end. `mark` is called for every prompt, to show a watchdog that work continues.
    """
    if model.left_out is None:
        return
    trained, sampled = positions(config, prompts)
    total = len(trained) + len(sampled)

    def of_all(value: int) -> list[int]:
        return processes.everybody(value) if processes else [value]

    held = False
    with ExitStack() as loaded, progress_of("encoding prompts", console) as emit:
        for first, step in shares(processes):
            mine = range(first, total, step)
            for start in range(0, max(of_all(len(mine))), TURN):
                for number in mine[start : start + TURN]:
                    mark("an encoded prompt")
                    sample = number >= len(trained)
                    (prompt,) = prompts(number - sample * len(trained), 1)
                    with model.resized(**config.run.sample_size if sample else {}):
                        if model.lacks(prompt):
                            if not held:
                                loaded.enter_context(model.encoding())
                                held = True
                            model.encode([prompt])
                emit(min(sum(of_all(len(mine[: start + TURN]))), total), total, "")
