"""Processor time of one training iteration beside other frameworks, on the same checkpoint with the same work.

    python -m peers.compare --flow-factory CHECKOUT --flow-grpo CHECKOUT --python PYTHON --rounds 20

Every framework is a process that lives through the whole comparison. In a round each makes one iteration, one after the
other, in an order that changes: what else the machine does meets all of them. The first round is dropped. That the work
is the same is counted by hooks on the transformer, and the comparison ends with an error where it is not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from scipy import stats

from peers import work
from peers.meter import ALONE, NEXT
from peers.tiny import SIZES, make_files

TESTS = Path(__file__).parents[1]
COUNTED = {
    "rows": ("rollout", "reference", "training", "backward"),
    "calls": ("rollout", "reference", "training"),
}
OURS, EXTRAS = "SAGE-GRPO", "SAGE-GRPO, default extras"


@dataclass
class Framework:
    """A process that makes an iteration when it is asked to."""

    name: str
    module: str
    python: str
    path: Path  # what its process imports from
    words: tuple[str, ...] = ()
    commit: str = ""
    facts: dict = field(default_factory=dict)
    iterations: list[dict] = field(default_factory=list)

    def start(self, checkpoint, prompts, folder, guidance):
        folder.mkdir()
        self.log = folder / "log.txt"
        places = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(self.path)]), "OMP_NUM_THREADS": "1"}
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        given = map(str, (checkpoint, prompts, folder / "run", guidance))
        self.process = subprocess.Popen(
            [self.python, "-m", f"peers.{self.module}", *given, *self.words],
            cwd=folder,
            env=os.environ | places | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            end = "\n".join(self.log.read_text().splitlines()[-20:])
            raise SystemExit(f"{self.name} ended with code {self.process.wait()}:\n{end}")
        return json.loads(line)

    def iterate(self, word):
        print(word, file=self.process.stdin, flush=True)
        self.iterations.append(self.answer())

    def stop(self):
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait()


def commit_of(checkout):
    """Of a peer's checkout, with a word if it is not as committed."""
    said = [
        subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False).stdout.strip()
        for words in (("rev-parse", "HEAD"), ("diff", "HEAD", "--name-only", "--diff-filter=M"))
    ]
    return (said[0] or "unknown") + (", changed" if said[1] else "")


def frameworks(args):
    source = TESTS.parent / "src"
    found = [Framework(OURS, "ours", sys.executable, source)]
    found += [Framework(EXTRAS, "ours", sys.executable, source, ("extras",))] if args.extras else []
    # from another folder; not resolved: a link is how an environment knows itself
    python = os.path.abspath(args.python) if args.python else sys.executable
    if args.flow_factory:
        path = args.flow_factory.resolve()
        found.append(Framework("Flow-Factory", "flow_factory", python, path / "src", commit=commit_of(path)))
    if args.flow_grpo:
        path = args.flow_grpo.resolve()
        found.append(Framework("flow_grpo", "flow_grpo", python, path, commit=commit_of(path)))
    return found


def measure(args, guidance):
    """All frameworks after their rounds."""
    found = frameworks(args)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, prompts = make_files(Path(folder), args.size)
        try:
            for one in found:  # one by one: starting up is no part of the comparison, but is heard by a neighbour
                one.start(checkpoint, prompts, Path(folder) / f"{one.module}{len(one.words)}", guidance)
                one.facts = one.answer()
            order = deque(found)
            for number in range(args.rounds + 1):
                for one in order:
                    one.iterate(ALONE if number % 3 == 1 else NEXT)  # bare calls vary less: a third is enough
                order.rotate(1)
        finally:
            for one in found:
                if hasattr(one, "process"):
                    one.stop()
    for one in found:
        del one.iterations[0]
    check_same_work(found, guidance)
    return found


def check_same_work(found, guidance):
    """The same libraries, rows of the transformer and optimizer steps for all, and those that were meant."""
    wanted = work.expected(guidance)
    for one in found:
        if one.facts["versions"] != found[0].facts["versions"]:
            raise SystemExit(f"{one.name} runs with {one.facts['versions']}, we with {found[0].facts['versions']}")
        if one.name == EXTRAS:
            continue  # the gauge and the samples ask the network, too
        for iteration in one.iterations:
            if (iteration["rows"], iteration["optimizer_steps"]) != (wanted, 1):
                raise SystemExit(
                    f"{one.name} did other work: rows {iteration['rows']} and {iteration['optimizer_steps']} optimizer "
                    f"steps, not {wanted} and 1"
                )


def median(values):
    """With its 95 % interval by order statistics: exact for any distribution of independent values."""
    values = sorted(values)
    low = max(int(stats.binom.ppf(0.025, len(values), 0.5)) - 1, 0)
    return statistics.median(values), values[low], values[-1 - low]


def summary(framework, ours):
    cpu, own = ([iteration["cpu"] for iteration in one.iterations] for one in (framework, ours))
    both = [iteration for iteration in framework.iterations if "alone" in iteration]
    return {
        "framework": framework.name,
        "commit": framework.commit,
        "cpu": median(cpu),
        "cpu_mean": statistics.mean(cpu),
        "ours_over_theirs": median([a / b for a, b in zip(own, cpu, strict=True)]),
        "alone": median([iteration["alone"] for iteration in both])[0],
        "over_alone": median([iteration["cpu"] / iteration["alone"] for iteration in both]),
        "rows": framework.iterations[-1]["rows"],
        "calls": framework.iterations[-1]["calls"],
        "optimizer_steps": framework.iterations[-1]["optimizer_steps"],
        "trained": framework.facts["trained"],
        "peak_mb": framework.iterations[-1]["peak_mb"],
    }


def table(rows):
    """In Markdown, as the documentation shows it."""
    titles = (
        "framework",
        "CPU seconds per iteration (mean)",
        "ours / theirs",
        "passes alone",
        "iteration / passes",
        *(f"{name}: {', '.join(kinds)}" for name, kinds in COUNTED.items()),
        "weights trained",
        "peak MB",
    )
    lines = [titles, ("---",) * len(titles)]
    for row in rows:
        counted = [", ".join(str(row[name][kind]) for kind in kinds) for name, kinds in COUNTED.items()]
        ratio, over = ("{:.3f} [{:.3f}, {:.3f}]".format(*row[name]) for name in ("ours_over_theirs", "over_alone"))
        lines.append(
            (
                row["framework"],
                "{:.3f} [{:.3f}, {:.3f}]".format(*row["cpu"]) + f" ({row['cpu_mean']:.3f})",
                "1" if row["framework"] == OURS else ratio,
                f"{row['alone']:.3f}",
                over,
                *counted,
                f"{row['trained']:,}",
                f"{row['peak_mb']:.0f}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flow-factory", type=Path, help="a checkout of Flow-Factory; without one it is left out")
    parser.add_argument("--flow-grpo", type=Path, help="a checkout of flow_grpo; without one it is left out")
    parser.add_argument("--python", help="of the environment that both run in")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--size", choices=SIZES, default=SIZES[0])
    parser.add_argument("--guidance", type=float, nargs="+", default=[work.GUIDANCE, 1.0], help="1 is none")
    parser.add_argument("--extras", action="store_true", help="ours once more: TensorBoard, gauge and samples on")
    parser.add_argument("--json", type=Path, help="every iteration of all, into this file")
    args = parser.parse_args()
    results = {}
    for guidance in args.guidance:
        found = measure(args, guidance)
        rows = [summary(one, found[0]) for one in found]
        results[str(guidance)] = {"summary": rows, "iterations": {one.name: one.iterations for one in found}}
        print(f"\nguidance {guidance}, {args.size}, medians of {args.rounds} rounds with 95 % intervals\n")
        print(table(rows), flush=True)
    print("\n" + ", ".join(f"{name} {version}" for name, version in found[0].facts["versions"].items()))
    print("\n".join(f"{one.name}: {one.commit}" for one in found if one.commit))
    if args.json:
        args.json.write_text(json.dumps(results | {"versions": found[0].facts["versions"]}, indent=1))


if __name__ == "__main__":
    main()
