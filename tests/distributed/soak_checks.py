"""What must hold of a soaked run, looked at from outside: files, notes of its processes, and its undisturbed twin."""

import hashlib
import json
from collections import defaultdict
from statistics import mean, median

import torch

from sage_grpo.distributed.checkpoint import MANIFEST, DamagedCheckpoint, load_checkpoint, load_newest
from sage_grpo.training.trackers import read_metrics

INVARIANTS = {
    "resume": "every start went on from the newest whole checkpoint",
    "lost": "no checkpoint that was there was lost",
    "half": "no half checkpoint can be loaded",
    "metrics": "metrics.jsonl has every iteration once, and the numbers of the undisturbed run",
    "masks": "exactly the samples with a fault are masked, and all scores are true",
    "weights": "weights, averages, anchor, optimizer and gauge equal those of the undisturbed run to the bit",
    "kept": "as many checkpoints stay as run.keep says",
    "files": "no temporary files are left",
    "memory": "the memory of the processes does not grow",
    "causes": "no process ended but by a planted cause",
    "end": "the run came to its end",
}
GROWTH = 1.0, 64.0  # MB an iteration, and in all: more than both is a leak
WARM = 4  # iterations before memory is looked at
FLEET_GROWTH = 1.5, 300.0  # times, and MB more, from the first rounds to the last


def step_of(name):
    return int(name.removeprefix("step-"))


def is_whole(folder):
    """By its manifest, read without the code under test."""
    try:
        hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
        return bool(hashes) and all(
            hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest for file, digest in hashes.items()
        )
    except (OSError, ValueError, KeyError):
        return False


def look(root):
    """What lies in a folder of checkpoints: the newest whole one, and those that should not be there."""
    whole = {path.name: is_whole(path) for path in sorted(root.glob("step-*"))}
    newest = max((step_of(name) for name, good in whole.items() if good), default=0)
    return {"newest": newest, "unwhole": [name for name, good in whole.items() if not good]}


def half_that_loads(root):
    """Parts without a manifest that could be loaded all the same."""
    found = []
    for part in root.glob(".step-*"):
        if not (part / MANIFEST).exists():
            try:
                load_checkpoint(root, part.name)
                found.append(part.name)
            except DamagedCheckpoint:
                continue
    return found


def leftovers(folder):
    """Hidden files, but the lock of a run folder, which stays."""
    found = (path.relative_to(folder) for path in folder.rglob(".*"))
    return sorted(str(path) for path in found if path.name != ".lock")


def differences(a, b, place=""):
    """Where two states differ in a bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
        return [] if same else [place]
    if type(a) is not type(b) or (isinstance(a, dict | list | tuple) and len(a) != len(b)):
        return [place]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [place]
        return [found for key in a for found in differences(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list | tuple):
        return [found for i, pair in enumerate(zip(a, b, strict=True)) for found in differences(*pair, f"{place}/{i}")]
    return [] if a == b else [place]


def bits(x):
    return x.contiguous().flatten().view(torch.uint8)


def numbers(row):
    """What of a line of metrics is not the time of day."""
    return {key: value for key, value in row.items() if key != "time" and not key.startswith(("seconds/", "speed/"))}


def last_rollouts(notes):
    """Of every iteration and rank the last one that was made."""
    return list({(line["iteration"], line["rank"]): line for line in notes if line["what"] == "rollout"}.values())


def growth(notes):
    """MB an iteration and in all, of every process that lived long enough."""
    series = defaultdict(list)
    for line in notes:
        if line["what"] == "rollout":
            series[line["pid"]].append(line["mb"])
    found = []
    for values in series.values():
        warm = values[WARM:]
        if len(warm) >= 8:
            more = mean(warm[-3:]) - mean(warm[:3])
            found.append((more / (len(warm) - 3), more))
    return found


def fleet_grows(sizes):
    """MB of the fleet after each round."""
    few = max(len(sizes) // 4, 1)
    times, more = FLEET_GROWTH
    return len(sizes) >= 4 and median(sizes[-few:]) > times * median(sizes[:few]) + more


def check_starts(notes, timeline):
    """From the notes of every start, and what was seen from outside: (time, newest checkpoint)."""
    found = []
    starts = {(*line["start"], line["rank"]): line["time"] for line in notes if line["what"] == "start"}
    for line in (line for line in notes if line["what"] == "resumed"):
        began = starts[(*line["start"], line["rank"])]
        seen = max((newest for when, newest in timeline if when < began), default=0)
        if line["at"] != line["newest"]:
            found.append(("resume", f"went on at {line['at']}, though step {line['newest']} was whole"))
        if line["newest"] < seen:
            found.append(("lost", f"step {seen} was there, but only {line['newest']} at the next start"))
        if line["unwhole"] or line["loadable_halves"]:
            found.append(("half", f"{line['unwhole']} are not whole, {line['loadable_halves']} could be loaded"))
        if not line["rows"]:
            found.append(("metrics", f"after the start at {line['at']} the rows are not 1 to {line['at']}"))
    return found


def check_masks(notes):
    found, seen = [], {}
    for line in (line for line in notes if line["what"] == "rollout"):
        if line["wrong_masks"] or line["wrong_scores"]:
            wrong = f"{line['wrong_masks']} wrong masks and {line['wrong_scores']} wrong scores"
            found.append(("masks", f"{wrong} in iteration {line['iteration']} of rank {line['rank']}"))
        key = line["iteration"], line["rank"]
        if seen.setdefault(key, line["videos"]) != line["videos"]:
            found.append(("weights", f"iteration {key[0]} of rank {key[1]} has other videos when it is made again"))
    return found


def check_end(folder, twin, iterations, keep):
    """The disturbed run's folder beside that of its twin."""
    found, (name, state, _), (other, known, _) = [], *(load_newest(f / "checkpoints") for f in (folder, twin))
    if step_of(name) != iterations or step_of(other) != iterations:
        found.append(("end", f"the newest checkpoints are {name} and {other}, not of {iterations}"))
    if different := differences(state, known):
        found.append(("weights", f"{len(different)} parts differ, such as {different[:3]}"))
    rows, others = read_metrics(folder / "metrics.jsonl"), read_metrics(twin / "metrics.jsonl")
    if [row["step"] for row in rows] != list(range(1, iterations + 1)):
        found.append(("metrics", f"steps are {[row['step'] for row in rows]}"))
    apart = [a["step"] for a, b in zip(rows, others, strict=False) if numbers(a) != numbers(b)]
    if apart:
        found.append(("metrics", f"the rows {apart[:5]} are not those of the undisturbed run"))
    left = look(folder / "checkpoints")
    if left["unwhole"]:
        found.append(("half", f"{left['unwhole']} are not whole at the end"))
    if (count := len(list((folder / "checkpoints").glob("step-*")))) != keep:
        found.append(("kept", f"{count} checkpoints at the end, {keep} are to be kept"))
    if temporary := leftovers(folder):
        found.append(("files", f"{len(temporary)} left, such as {temporary[:3]}"))
    return found


def check_memory(notes):
    an_iteration, in_all = GROWTH
    return [
        ("memory", f"a process grew by {more:.0f} MB, {rate:.2f} MB an iteration")
        for rate, more in growth(notes)
        if rate > an_iteration and more > in_all
    ]
