"""Would a test notice? `python -m faults [NAME…]` plants a fault in each package, one at a time, and expects a failure.

Each is a small mistake that a developer could make: nothing crashes, a number or a file is wrong. The tree is copied
and only the copy is changed. A fault that no test finds is a test that is missing: the command then ends with 1.
"""

import argparse
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).parents[1]
SOURCE = Path("src", "sage_grpo")
PYTEST = ("-m", "pytest", "-m", "not sweep", "-x", "-q", "-p", "no:cacheprovider")
TESTS_FAILED = 1  # pytest's; from 2 on it could not run them


@dataclass(frozen=True)
class Fault:
    """A text in a file of a package, what stands there instead, and the tests that should see it."""

    package: str
    idea: str
    file: str  # below the package
    old: str
    new: str
    tests: tuple[str, ...]  # below tests/; with ::name where the others of a file are slow

    @property
    def path(self):
        return SOURCE / self.package / self.file


# fmt: off
FAULTS = (
    Fault("cli", "one video without a score makes the whole command fail",
          "rewards_score.py", "if not any(row.scores for row in rows)", "if not all(row.scores for row in rows)",
          ("cli/test_rewards.py",)),
    Fault("config", "a recipe that changes one setting of a section loses the section's others",
          "load.py", "return {**base, **values, **sections}", "return {**base, **values}",
          ("config/test_load.py",)),
    Fault("core", "a resumed run counts its updates from 0",
          "loop.py", 'self.iteration, self.updates = state["iteration"], state["updates"]',
          'self.iteration = state["iteration"]',
          ("core/test_resume.py::test_every_part_of_the_state_matters",)),
    Fault("data", "every epoch has the order of the first",
          "prompts.py", "repr((self.seed, epoch))", "repr((self.seed, 0))",
          ("data/test_prompts.py::test_seeds_and_epochs_have_their_own_order",)),
    Fault("distributed", "the hash of a checkpoint's first file is not checked",
          "checkpoint.py", "files[rank::world]", "files[rank + 1 :: world]",
          ("distributed/test_checkpoint.py",)),
    Fault("evaluation", "scorers that compare get the videos of all prompts as one group",
          "folder.py", "groups.setdefault(row.prompt, [])", "groups.setdefault(rows[0].prompt, [])",
          ("evaluation/test_folder.py",)),
    Fault("preflight/first_run", "what is missing counts as broken, needed or not",
          "check.py", "return self.needed and not self.ok", "return not self.ok",
          ("cli/test_doctor.py",)),
    Fault("inference", "a run is opened with its last weights and says that they are averaged",
          "reopen.py", "        bank.adopt(EMA)\n", "        bank.save(EMA)\n",
          ("e2e/test_export.py::test_last_or_averaged_weights",)),
    Fault("lab", "a video counts as one of the others of its prompt in their diversity",
          "shapes/heldout.py", "apart.sum(1) / (len(members) - 1)", "apart.sum(1) / len(members)",
          ("lab/test_shapes_heldout.py",)),
    Fault("math", "a failed reward counts as 0 in the mean of its group",
          "advantage.py", "mean = r.sum(-1, keepdim=True) / count", "mean = r.mean(-1, keepdim=True)",
          ("math/test_advantage.py",)),
    Fault("models", "Wan's guidance is one too strong",
          "wan.py", "return negative + scale.to(", "return positive + scale.to(",
          ("models/test_contract.py::test_contract[Wan-guided-check_pipeline]",)),
    Fault("paper", "methods of Table 2 are compared with one and the same equalizer",
          "experiments.py", "f\"policy.equalizer={str(equalizer).lower()}\"", '"policy.equalizer=true"',
          ("paper/test_paper.py::test_table_2_is_the_papers_grid",)),
    Fault("preflight/plan", "a failure loses a whole interval between saves, not half of one",
          "interruptions.py", "waste = interval / 2 +", "waste = interval +",
          ("plan/test_time.py",)),
    Fault("preflight/rehearsal", "weights that stayed as they were count as changed",
          "worker.py", "(live[name].detach() - before).norm())) > 0]",
          "(live[name].detach() - before).norm())) >= 0]",
          ("rehearsal/test_rehearse.py::test_a_reward_that_is_always_the_same",)),
    Fault("report", "the pause before a resume is paid for as work",
          "cost.py", "spans[i] = run.times[i] - restarts[-1]", "spans[i] = span",
          ("report/test_run_folders.py",)),
    Fault("rewards", "scores that come back in another order go to the wrong videos",
          "remote/wire.py", '[told_ids.index(name) for name in ids]', "list(range(len(ids)))",
          ("rewards/test_http.py::test_another_order_is_put_right",)),
    Fault("runs", "an iteration that was done again after a kill keeps the line of its first time",
          "read.py", 'rows[int(row["step"])] = row', 'rows.setdefault(int(row["step"]), row)',
          ("report/test_run_folders.py",)),
    Fault("serve", "a scorer too busy to answer is taken for one that needs all frames",
          "gate.py", "Busy as error:\n                raise Refused(503, str(error)) from error\n        return JSON",
          'Busy:\n                told["frames"] = None\n        return JSON',
          ("serve/test_gate.py",)),
    Fault("training", "a resumed run forgets the accelerator's random numbers",
          "trainer.py", 'self.random.load_state_dict(state["parts"].get("random", {}))',
          "self.random.load_state_dict({})",
          ("training/test_going_on.py::test_the_accelerator_s_random_numbers_are_resumed",)),
    Fault("tune", "a run that is continued counts as started again in the cost of a search",
          "halving.py", "(after.passes - before.passes)", "after.passes",
          ("tune/test_halving.py",)),
    Fault("weights", "tuning.alpha is ignored",
          "lora_bank.py", "lora_alpha=config.alpha or config.rank", "lora_alpha=config.rank",
          ("weights/test_merge.py",)),
)
# fmt: on


def packages(root=ROOT):
    """Of the source; found by iter_modules(…), so that a change of any of them runs the test of this file."""
    names = {found.name for found in pkgutil.iter_modules([str(root / SOURCE)]) if found.ispkg}
    rooms = pkgutil.iter_modules([str(root / SOURCE / "preflight")])  # three in one, each with a fault of its own
    return names - {"preflight"} | {f"preflight/{found.name}" for found in rooms if found.ispkg}


def copied(to, root=ROOT):
    """All files that git knows, or would."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():  # not one that was removed and is still in the index
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(root / name, to / name)


def python(tree, *words):
    """A process that imports the package from `tree`, and leaves no bytecode that would outlive a fault."""
    left_out = ("SAGE_GRPO_ALL", "SAGE_GRPO_DURATIONS", "PYTEST_ADDOPTS")
    own = {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "tests")]), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | own
    return subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


@contextmanager
def planted(fault, tree):
    path = tree / fault.path
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.path} has the text of its fault {text.count(fault.old)} times, not once")
    path.write_text(text.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(text)


def look(fault, tree):
    """The first test that fails, if any, and pytest's exit code. What cannot be run has found nothing."""
    with planted(fault, tree):
        done = python(tree, *PYTEST, *(f"tests/{test}" for test in fault.tests))
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed and done.returncode == TESTS_FAILED else None, done.returncode


def main():
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages; none means all")
    parser.add_argument("--list", action="store_true", help="the faults, without running anything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the table as JSON, too")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {fault.package for fault in FAULTS}:
        parser.error(f"no fault is planted in {', '.join(sorted(unknown))}; packages: {', '.join(sorted(packages()))}")
    chosen = [fault for fault in FAULTS if not asked.names or fault.package in asked.names]
    if asked.list:
        for fault in chosen:
            print(f"{fault.package:<20} {fault.idea} ({fault.path}; {', '.join(fault.tests)})")
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder).resolve()
        copied(tree)
        imported = python(tree, "-c", "import sage_grpo; print(sage_grpo.__file__)").stdout.strip()
        if not Path(imported).is_relative_to(tree):
            raise RuntimeError(f"{imported} would be tested, not the copy in {tree}")
        print("| package | what is broken | found by | seconds |\n|---|---|---|---|", flush=True)
        for fault in chosen:
            started = time.monotonic()
            found, code = look(fault, tree)
            seconds = round(time.monotonic() - started, 1)
            cell = found or f"**nothing**, pytest ended with {code}"
            print(f"| {fault.package} | {fault.idea} | {cell} | {seconds:g} |", flush=True)
            rows.append({"package": fault.package, "idea": fault.idea, "found_by": found, "seconds": seconds})
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    missed = [row["package"] for row in rows if not row["found_by"]]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} faults were found" + f"; not {', '.join(missed)}" * bool(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
