"""Every shipped recipe, LoRA and full, short and long, on every kind of GPU: `plan` answers, and never with a trace.

`python -m plan.every [--recipes NAME …]`, or `make plan-all`: some twenty minutes. CI asks for a few.
"""

import argparse
import io
import json
import time
import traceback
from itertools import product

from rich.console import Console
from rich.progress import track

from sage_grpo.config import ConfigError, load_recipe
from sage_grpo.config.load import shipped_recipes
from sage_grpo.models.errors import ModelError
from sage_grpo.preflight.plan import show
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.estimate import estimate
from sage_grpo.preflight.plan.hardware import GPUS

FRAMES = {"short": ["model.frames=5"], "as shipped": [], "long": ["model.frames=241"]}


def ask(recipe, mode, frames):
    """(GPU, what was said) for each kind of GPU; a refusal is one sentence for all of them."""
    changes = [f"tuning.mode={mode}", *FRAMES[frames]]
    try:
        config = load_recipe(recipe, changes)
        for gpu, kind in GPUS.items():
            page = Console(file=io.StringIO(), width=80)
            plan = estimate(config, kind, Calibration())
            json.dumps(show.summary(plan, gpu, 2.5))
            show.show(plan, gpu, 2.5, page)
            yield gpu, page.file.getvalue()
    except (ConfigError, ModelError) as error:
        yield "any", f"error: {error}"


def main(recipes):
    cases, begun = list(product(recipes, ("lora", "full"), FRAMES)), time.monotonic()
    answered, refused, failed = 0, [], []
    for case in track(cases, "planning", console=Console(stderr=True)):
        try:
            for _, text in ask(*case):
                if text.startswith("error: "):
                    refused.append((*case, text))
                answered += 1
        except Exception:
            failed.append((*case, traceback.format_exc()))
    for *case, text in (*refused, *failed):
        print(*case, text)
    print(
        f"{answered} answers, {len(refused)} of them refusals, {len(failed)} failures, {time.monotonic() - begun:.0f} s"
    )
    return len(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=list(shipped_recipes()))
    raise SystemExit(bool(main(parser.parse_args().recipes)))
