"""A run of the soak under torchrun, seen from outside, and all that is done to it."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

from distributed.launcher import environment, torchrun, workers
from distributed.soak_checks import step_of
from distributed.soak_notes import descendants
from distributed.soak_places import AT_START, ONLY_FIRST, PLACES
from distributed.traps import order
from serve.faults import kill_all, living

PATIENCE = 900.0  # seconds without any progress, on a machine that has other work too
TRAP_PATIENCE = 240.0  # until a place is met; some come only every few iterations
RESTARTS = 100_000
PIECE = 1 << 16


class Stuck(RuntimeError):
    """Nothing moves any more."""


class Run:
    def __init__(self, folder, out, recipe, seed, traps=None, broken=None):
        self.folder, self.out, self.root, self.traps = folder, out, out / "checkpoints", traps
        folder.mkdir()
        self.plan, self.notes_file, self.log = folder / "plan.json", folder / "notes.jsonl", folder / "log.txt"
        plan = {"recipe": recipe, "notes": str(self.notes_file), "seed": seed, "broken": broken}
        self.plan.write_text(json.dumps(plan | {"traps": str(traps) if traps else ""}))
        self.notes, self._read, self.launches = [], 0, 0
        self.timeline, self.newest, self.most = [], 0, 0  # of checkpoints, as they were seen
        self.explained = set()  # starts that ended by a planted cause
        self.launcher, self.iterations = None, recipe["run"]["iterations"]

    def launch(self):
        self.launches += 1
        with self.log.open("a") as log:
            command = torchrun(2, "distributed.soak_worker", self.plan, restarts=RESTARTS)
            self.launcher = subprocess.Popen(
                command, env=environment(LAUNCH=str(self.launches)), stdout=log, stderr=subprocess.STDOUT
            )

    def poll(self):
        """Read what is new."""
        if self.notes_file.exists():
            with self.notes_file.open("rb") as file:
                file.seek(self._read)
                *lines, _ = file.read().split(b"\n")
            self._read += sum(len(line) + 1 for line in lines)
            self.notes += [json.loads(line) for line in lines]
        steps = [step_of(path.name) for path in self.root.glob("step-*")]
        self.most = max(self.most, len(steps))
        if (newest := max(steps, default=0)) > self.newest:
            self.newest = newest
            self.timeline.append((time.time(), newest))

    def until(self, done, seconds=PATIENCE):
        """Whether it came true before the run ended."""
        end = time.monotonic() + seconds
        while True:
            ended = self.launcher.poll() is not None
            self.poll()
            if ended or done():
                return done()
            if time.monotonic() > end:
                raise Stuck(f"nothing came for {seconds:.0f} s")
            time.sleep(0.05)

    def until_more(self):
        """Whether there was one more checkpoint before the run ended."""
        last = self.newest
        return self.until(lambda: self.newest > last)

    @property
    def starts(self):
        return [tuple(line["start"]) for line in self.notes if line["what"] == "start"]

    @property
    def start(self):
        """The newest one."""
        return max(self.starts, default=(0, 0))

    @property
    def iteration(self):
        return max((line["iteration"] for line in self.notes[-4:] if line["what"] == "rollout"), default=self.newest)

    def process(self, rank):
        """Of the newest start."""
        for line in reversed(self.notes):
            if line["what"] == "start" and line["rank"] == rank and tuple(line["start"]) == self.start:
                return line["pid"]
        return None

    def send(self, rank, number):
        """Whether a living process of the newest start got the signal."""
        pid = self.process(rank)
        if pid is None or pid not in descendants(self.launcher.pid):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def unexplained(self):
        ended = set(self.starts) - {self.start}
        return sorted(ended - self.explained)

    def end(self):
        """With all its processes."""
        if self.launcher and self.launcher.poll() is None:
            mine = descendants(self.launcher.pid)
            for pid in mine:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.launcher.wait()


class Disturber:
    """What is done to a run, one thing after the other; reward faults go on meanwhile."""

    def __init__(self, run, rng, fleet_notes, totals, tell):
        self.run, self.rng, self.fleet_notes, self.tell = run, rng, fleet_notes, tell
        self.kills, self.done = totals.kills, totals.other
        self.events = {
            self.kill_in_place: 14,
            self.kill_anywhere: 3,
            self.kill_while_starting: 1,
            self.kill_while_resuming: 1,
            self.kill_beside_a_pause: 1,
            self.kill_all_at_once: 1,
            self.kill_while_stopping: 1,
            self.pause: 2,
            self.pause_scorer: 1,
            self.kill_scorers: 0.5,
            self.fill_disk: 2,
        }

    def disturb(self):
        event = self.rng.choices(list(self.events), list(self.events.values()))[0]
        event()

    def _killed(self, place, start):
        self.run.explained.add(start)
        self.kills[place] += 1
        self.tell(f"killed in {place}" if place in (AT_START, *PLACES) else f"killed {place}")

    def kill_in_place(self):
        place = self.rng.choice(PLACES)
        self._trap(place, 0 if place in ONLY_FIRST else self.rng.randrange(2))

    def _trap(self, place, rank):
        run, file = self.run, self.run.traps / "order"
        order(run.traps, place, rank)
        with suppress(Stuck):
            run.until(lambda: not file.exists(), TRAP_PATIENCE)
        start = run.start
        try:
            file.unlink()  # nobody came by
        except FileNotFoundError:
            self._killed(place, start)

    def kill_anywhere(self, place="anywhere", most=2.0):
        time.sleep(self.rng.uniform(0, most))
        self.run.poll()
        start = self.run.start
        if self.run.send(self.rng.randrange(2), signal.SIGKILL):
            self._killed(place, start)
            return True
        return False

    def kill_while_starting(self):
        before = self.run.start
        if self.kill_anywhere() and self.run.until(lambda: self.run.start > before):
            self.kill_anywhere("while it started", most=4.0)

    def kill_while_resuming(self):
        rank, before = self.rng.randrange(2), self.run.start
        if self.kill_anywhere() and self.run.until(lambda: self.run.start > before):
            self._trap(AT_START, rank)

    def kill_beside_a_pause(self):
        rank, start = self.rng.randrange(2), self.run.start
        if self.run.send(rank, signal.SIGSTOP):
            time.sleep(self.rng.uniform(0.2, 2.0))
            if self.run.send(1 - rank, signal.SIGKILL):
                self._killed("beside a paused one", start)
                self.done["pauses"] += 1
            time.sleep(self.rng.uniform(0.5, 4.0))
            self._go_on(rank, start)

    def _go_on(self, rank, start):
        for line in self.run.notes:
            if line["what"] == "start" and line["rank"] == rank and tuple(line["start"]) == start:
                with suppress(ProcessLookupError):
                    os.kill(line["pid"], signal.SIGCONT)

    def kill_all_at_once(self):
        """As when a machine loses its power; somebody gives the same command again."""
        run = self.run
        start = run.start
        launcher, processes = run.launcher, workers(run.launcher)
        if launcher.poll() is not None:
            return
        for pid in (launcher.pid, *processes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()
        self._killed("with its launcher", start)
        run.launch()

    def kill_while_stopping(self):
        """A scheduler asks it to stop, and does not wait until its last checkpoint is written."""
        run, file = self.run, self.run.traps / "order"
        before, rank = run.start, self.rng.randrange(2)
        if not run.send(rank, signal.SIGTERM):
            return
        order(run.traps, "save", rank)
        run.until(lambda: not file.exists())
        run.explained.add(before)
        try:
            file.unlink()
        except FileNotFoundError:
            self._killed("while it stopped", before)
            return
        self.done["stopped when asked to"] += 1  # it was quicker
        if run.newest < run.iterations:
            run.launch()

    def pause(self):
        rank, start = self.rng.randrange(2), self.run.start
        if self.run.send(rank, signal.SIGSTOP):
            seconds = self.rng.uniform(2.0, 8.0)
            time.sleep(seconds)
            self._go_on(rank, start)
            self.done["pauses"] += 1
            self.tell(f"paused rank {rank} for {seconds:.0f} s")

    def pause_scorer(self):
        alive = living(self.fleet_notes)
        if alive:
            pid = self.rng.choice(alive)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.rng.uniform(2.0, 6.0))
                os.kill(pid, signal.SIGCONT)
                self.done["pauses of a scorer"] += 1
                self.tell("paused a scorer")

    def kill_scorers(self):
        self.done["scorers killed"] += kill_all(self.fleet_notes)
        self.tell("killed all scorers")

    def fill_disk(self):
        """Until the run has failed of it, and perhaps failed again; room is made before it can go on."""
        run, filler, before = self.run, self.run.out.parent / "filler", self.run.start
        sizes = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in run.root.glob("step-*")]
        spare, again = self.rng.uniform(0, 0.6 * max(sizes, default=0)), self.rng.randrange(2)
        with filler.open("wb", buffering=0) as file:

            def failed():
                fill(file, run.out, spare)
                starts = {start for start in run.starts if start > before}
                return len(starts) > again

            run.until(failed)
        met = run.start > before
        filler.unlink()
        run.until_more()
        self.run.explained |= {start for start in run.starts if before <= start < run.start}
        self.done["disk full"] += met
        self.tell(f"disk was full with {spare / 1e3:.0f} kB spare, {len(set(run.starts)) - 1} restarts so far")


def fill(file, folder, spare):
    """All but `spare` bytes; what the run gives back is taken, too."""
    with suppress(OSError):
        while (room := os.statvfs(folder)).f_bavail * room.f_frsize > spare + PIECE:
            file.write(bytes(PIECE))
        if spare < PIECE:
            while True:
                file.write(bytes(4096))
