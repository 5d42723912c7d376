"""Whether two checkouts train to the same bits: `python -m e2e.same_weights OTHER [HERE]`, or `make same-weights`.

For changes that should change nothing. Each run goes through the command, in a process of its own, with the package
of one checkout and then of the other; what is compared are the exported weights, tensor by tensor.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from safetensors import safe_open


def laboratory(iterations: int, *settings: str) -> list[list[str]]:
    """Return the commands of a run of the laboratory."""
    quiet = ["run.sample_every=0", "run.trackers=[]"]
    return [
        ["train", "lab", f"run.iterations={iterations}", "run.out={out}/run", *quiet, *settings],
        ["export", "{out}/run", "--out", "{out}/export"],
    ]


RENOISED = ("policy.points=4", "sampling.eta=0", "sampling.shared_initial_noise=false", "policy.clip=null")
RUNS = {
    "laboratory, 20 iterations": laboratory(20),
    "trained by awm, on renoised videos": laboratory(3, "policy.objective=awm", *RENOISED),
    "trained by nft, whose rollouts an average makes": laboratory(3, "policy.objective=nft", *RENOISED),
    "trained by dpo, on pairs": laboratory(3, "policy.objective=dpo", *RENOISED, "policy.select=1", "kl.anchor=fixed"),
    "tiny Wan, LoRA, one process": [["rehearse", "wan-1.3b-24gb-lora", "--processes", "1", "--out", "{out}"]],
    "tiny HunyuanVideo-1.5, LoRA, two processes": [
        ["rehearse", "hunyuan15-8gpu-lora", "--processes", "2", "--out", "{out}"]
    ],
}


def train(checkout: Path, commands: list[list[str]], out: Path) -> None:
    settings = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    for command in commands:
        words = [word.replace("{out}", str(out)) for word in command]
        done = subprocess.run(
            [sys.executable, "-m", "sage_grpo", *words],
            cwd=out.parent,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{checkout}: sage-grpo {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")


def tensors(folder: Path) -> dict[str, str]:
    """Hashes by file and name."""
    found = {}
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                content = weights.get_tensor(name).contiguous().flatten().view(torch.uint8)
                found[f"{file.relative_to(folder)}:{name}"] = hashlib.sha256(content.numpy().tobytes()).hexdigest()
    return found


def main(checkouts: list[Path]) -> int:
    console, different = Console(), 0
    with tempfile.TemporaryDirectory() as work:
        for i, (name, commands) in enumerate(RUNS.items()):
            ends = []
            for j, checkout in enumerate(checkouts):
                with Console(stderr=True).status(f"{i + 1} of {len(RUNS)}: {name}, {checkout}"):
                    out = Path(work) / str(j) / str(i)
                    out.parent.mkdir(exist_ok=True)
                    train(checkout, commands, out)
                    ends.append(tensors(out / "export"))
            wrong = sorted(key for key in {*ends[0], *ends[1]} if ends[0].get(key) != ends[1].get(key))
            if not ends[0]:
                raise SystemExit(f"{name}: nothing was exported")
            verdict = f"{len(wrong)} of {len(ends[0])} tensors differ: {', '.join(wrong[:3])}" if wrong else "equal"
            console.print(f"{name}: {len(ends[0])} tensors, {verdict}", highlight=False)
            different += len(wrong)
    return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("here", type=Path, nargs="?", default=Path())
    given = parser.parse_args()
    raise SystemExit(bool(main([given.other.resolve(), given.here.resolve()])))
