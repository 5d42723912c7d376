"""Everything goes wrong at once, for hours: `python -m distributed.soak --hours 2`.

Rounds of a run of two processes against a real fleet on Ray Serve. Meanwhile processes are killed and paused, the disk
fills up, scorers fail, and answers are spoilt on their way. A twin of each round, undisturbed, without a fleet and with
the same samples masked, must end with the same state to the bit.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from distributed import soak_checks as checks
from distributed.soak_faults import PER_REQUEST, SpoilingRelay
from distributed.soak_fleet import own_server, start_ray
from distributed.soak_notes import descendants, memory
from distributed.soak_run import Disturber, Run, Stuck
from distributed.test_full_disk import small_disk
from sage_grpo.files import atomic_write
from sage_grpo.lab.autoencoder import Autoencoder
from sage_grpo.lab.generator import LabTransformer
from sage_grpo.lab.shapes.model import ShapesModel
from serve.chaos import TOKEN
from serve.faults import NAMES

KEEP, PAGES = 2, 1 << 14  # of 4 kB
ITERATIONS = 30  # of a round


@dataclass
class Totals:
    """Sums over the rounds."""

    kind: str  # of fleet
    started: float = field(default_factory=time.time)
    finished: bool = False
    rounds: int = 0
    iterations: int = 0
    rollouts: int = 0  # made in all, with those that were lost to a kill
    restarts: int = 0
    kills: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    other: Counter = field(default_factory=Counter)
    masked: int = 0
    violations: dict = field(default_factory=lambda: {name: [] for name in checks.INVARIANTS})
    growth: list = field(default_factory=list)
    fleet: list = field(default_factory=list)

    def report(self, live=None):
        """`live` are the reward faults of the round under way."""
        faults = self.faults + (live or Counter())
        verdicts = {
            name: {"what": text, "held": not self.violations[name], "violations": self.violations[name][:20]}
            for name, text in checks.INVARIANTS.items()
        }
        rates = sorted(rate for rate, _ in self.growth)
        return {
            "finished": self.finished,
            "reward fleet": self.kind,
            "rounds": self.rounds,
            "hours": round((time.time() - self.started) / 3600, 3),
            "iterations": self.iterations,
            "rollouts": self.rollouts,
            "restarts": self.restarts,
            "kills": self.kills.total(),
            "kills by place": dict(self.kills.most_common()),
            "reward faults": faults.total(),
            "reward faults by kind": dict(faults.most_common()),
            "masked samples": self.masked,
            "other": dict(self.other),
            "memory": {
                "MB an iteration, median": round(rates[len(rates) // 2], 3) if rates else None,
                "MB an iteration, largest": round(rates[-1], 3) if rates else None,
                "fleet MB by round": [round(x) for x in self.fleet],
            },
            "verdicts": verdicts,
            "held": all(v["held"] for v in verdicts.values()),
        }

    def add(self, found, number):
        for name, text in found:
            self.violations[name].append(f"round {number}: {text}")


def recipe(out, base, reward, seed, mode, save_every, iterations):
    return {
        "seed": seed,
        "model": {"type": "shapes", "path": str(base)},
        "rewards": [reward],
        "tuning": {"mode": mode, "rank": 2},
        "parallel": {"processes": 2},
        "sampling": {"steps": 4},
        "policy": {
            "prompts_per_iteration": 4,
            "num_generations": 4,
            "batch_size": PER_REQUEST,
            "num_iterations": 2,
            "max_failed_rewards": 0.95,
        },
        "kl": {"ref_model_sync_steps": 3, "warmup": 0, "high": 0.1},
        "optimizer": {"lr": 1e-4, "ema": 0.9},
        "run": {
            "out": str(out),
            "iterations": iterations,
            "save_every": save_every,
            "keep": KEEP,
            "sample_every": 4,
            "samples": 2,
            "trackers": [],
            "hang_minutes": 30,
        },
        "gauge": {"every": 2},
    }


class Soak:
    def __init__(self, options, folder, url, fleet_notes, kind):
        self.options, self.folder, self.fleet_notes = options, folder, fleet_notes
        self.totals, self.rng = Totals(kind), random.Random(options.seed)
        self.relay = SpoilingRelay(url, random.Random(options.seed + 1))
        self.run = None  # the one under way
        self.base = folder / "base"
        torch.manual_seed(options.seed)
        autoencoder = Autoencoder((4, 16, 16), (4, 4, 4), channels=4, width=16, depth=1, heads=2)
        module = LabTransformer(
            vocabulary=15, text_length=8, latents=autoencoder.latent_shape, width=32, depth=2, heads=2
        )
        ShapesModel(module, autoencoder=autoencoder).save_pretrained(str(self.base))
        self.end = self.totals.started + 3600 * options.hours

    @property
    def goes_on(self):
        totals, options = self.totals, self.options
        enough = totals.kills.total() >= options.kills and self.faults().total() >= options.faults
        return time.time() < self.end or not enough

    def faults(self):
        return self.totals.faults + self.live()

    def live(self):
        """Of the round under way: each sample's once, however often it was made."""
        if self.run is None:
            return Counter()
        met = {
            (line["iteration"], line["rank"]): line["faults"] for line in self.run.notes if line["what"] == "rollout"
        }
        found = Counter(f"{kind} on the way" for kind in list(self.relay.done))
        for faults in met.values():
            found.update(faults)
        return found

    def left(self):
        minutes = (self.end - time.time()) / 60
        return f"{minutes:.0f} min left" if minutes > 0 else "finishing"

    def tell(self, text):
        now = time.strftime("%H:%M:%S")
        print(f"{now}, {self.left()}, round {self.totals.rounds + 1}: {text}", flush=True)
        self.write()

    def write(self):
        if self.options.json:
            atomic_write(
                Path(self.options.json), (json.dumps(self.totals.report(self.live()), indent=1) + "\n").encode()
            )

    def round(self):
        number = self.totals.rounds + 1
        mode, save_every = ("lora", "full", "full")[number % 3], self.rng.choice([1, 1, 2])
        place = self.folder / f"round-{number}"
        place.mkdir()
        with small_disk(place / "disk", PAGES) as disk:
            disturbed, twin = self.runs(place, disk, (mode, save_every, self.rng.randrange(1 << 30)))
            try:
                self.tell(f"{mode}, saved every {save_every}, {self.options.iterations} iterations")
                self.run = disturbed
                twin.launch()
                disturbed.launch()
                found = self.train(disturbed, twin)
            finally:
                disturbed.end()
                twin.end()
            self.account(disturbed, twin, found)
            if found:
                shutil.copytree(disk, place / "evidence")
        if not found:
            shutil.rmtree(place)
        self.totals.add(found, number)
        for name, text in found:
            self.tell(f"VIOLATED {name}: {text}")
        kills, faults = self.totals.kills.total(), self.totals.faults.total()
        self.tell(f"over, with {kills} kills and {faults} reward faults so far")
        self.totals.rounds += 1

    def runs(self, place, disk, choices):
        mode, save_every, seed = choices
        http = {
            "url": self.relay.url,
            "names": list(NAMES),
            "timeout": 120.0,
            "deadline": 900.0,
            "retries": 3,
            "videos_per_request": PER_REQUEST,
        }
        rewards = (
            {"type": "http", "options": http},
            {"type": "distributed.soak_faults:Known", "options": {"seed": self.options.seed}},
        )
        (traps := place / "traps").mkdir()
        made = []
        for name, out, reward, laid in (
            ("disturbed", disk / "run", rewards[0], traps),
            ("twin", place / "undisturbed", rewards[1], None),
        ):
            settings = recipe(out, self.base, reward, seed, mode, save_every, self.options.iterations)
            broken = self.options.broken if laid else None
            made.append(Run(place / name, out, settings, self.options.seed, laid, broken))
        return made

    def train(self, disturbed, twin):
        """Disturb until it has ended; what was violated."""
        found = []
        disturber = Disturber(disturbed, self.rng, self.fleet_notes, self.totals, self.tell)
        try:
            while disturbed.until_more():
                if self.goes_on:
                    disturber.disturb()
            disturbed.poll()
            twin.until(lambda: False)
        except Stuck as error:
            found.append(("end", f"{error}; the end of its log: {disturbed.log.read_text()[-600:]}"))
        codes = disturbed.launcher.poll(), twin.launcher.poll()
        if codes != (0, 0):
            found.append(("end", f"the launchers ended with {codes}: {disturbed.log.read_text()[-600:]}"))
        else:
            iterations = self.options.iterations
            found += checks.check_end(disturbed.out, twin.out, iterations, KEEP)
        found += checks.check_starts(disturbed.notes, disturbed.timeline) + checks.check_masks(disturbed.notes)
        found += checks.check_memory(disturbed.notes) + checks.check_memory(twin.notes)
        if starts := disturbed.unexplained():
            found.append(("causes", f"the starts {starts} ended by themselves; see {disturbed.log}"))
        return found

    def account(self, disturbed, twin, found):
        totals, seen = self.totals, checks.last_rollouts(disturbed.notes)
        totals.rollouts += sum(line["what"] == "rollout" and line["rank"] == 0 for line in disturbed.notes)
        totals.iterations += len({line["iteration"] for line in seen})
        totals.restarts += max(len(set(disturbed.starts)) - 1, 0)
        totals.masked += sum(line["masked"] for line in seen)
        totals.faults += self.live()
        self.run = None
        with self.relay.lock:
            self.relay.done.clear()
            self.relay.met.clear()
        totals.growth += checks.growth(disturbed.notes) + checks.growth(twin.notes)
        totals.fleet.append(sum(memory(pid) for pid in descendants(os.getpid())))
        if checks.fleet_grows(totals.fleet):
            found.append(("memory", f"fleet and relay grew: {[round(x) for x in totals.fleet]} MB"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0, help="rounds go on for so long")
    parser.add_argument("--kills", type=int, default=0, help="and until there were so many")
    parser.add_argument("--faults", type=int, default=0, help="and so many reward faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fleet", choices=("ray", "own"), default="ray", help="own: one process, if Ray is too heavy")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of a round")
    parser.add_argument("--json", help="file for the counts, renewed all the time")
    parser.add_argument("--broken", choices=("resume", "score", "half"), help="break the trainer: the soak must see it")
    parser.add_argument("--out", type=Path, help="folder for what a round leaves if something was violated")
    return soak(parser.parse_args())


def soak(options):
    torch.set_num_threads(1)
    folder = options.out or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = Soak(options, folder, *start_fleet(stack, options.fleet, options.seed))
        stack.callback(made.relay.close)
        while made.goes_on:
            made.round()
        made.totals.finished = True
        made.write()
    report = made.totals.report()
    show(report, folder)
    return 0 if report["held"] else 1


def start_fleet(stack, kind, seed):
    """Its address, the folder of its notes and what it is."""
    os.environ["SAGE_GRPO_TOKEN"] = TOKEN
    found = start_ray(stack, seed) if kind == "ray" else None
    if found:
        return *found, "Ray Serve"
    return *stack.enter_context(own_server(seed)), "a server of gate and scorer"


def show(report, folder):
    def listed(counts):
        return ", ".join(f"{count} {name}" for name, count in counts.items())

    made = f"{report['iterations']} iterations ({report['rollouts']} rollouts with those made again)"
    lasted = f"{report['hours']:.2f} h against {report['reward fleet']}"
    print(f"\n{report['rounds']} rounds, {made}, {report['restarts']} restarts in {lasted}")
    print(f"{report['kills']} kills: {listed(report['kills by place'])}")
    print(f"{report['reward faults']} reward faults: {listed(report['reward faults by kind'])}")
    print(f"{report['masked samples']} samples masked; {listed(report['other'])}; memory {report['memory']}")
    for name, verdict in report["verdicts"].items():
        print(f"{'held    ' if verdict['held'] else 'VIOLATED'} {name}: {verdict['what']}")
        for text in verdict["violations"]:
            print(f"         {text}")
    if not report["held"]:
        print(f"what the rounds left is in {folder}")


if __name__ == "__main__":
    sys.exit(main())
