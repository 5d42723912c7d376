"""A full disk leaves the last good checkpoint alone, and is told in a sentence."""

import errno
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from distributed.test_checkpoint import STATE, equal, save_checkpoint
from sage_grpo.distributed.checkpoint import CheckpointError, checkpoints, load_newest


@contextmanager
def small_disk(folder, pages):
    """A file system of so many pages, at least one of them taken by its root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * 4096}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def attempt(disk, step):
    """What the error says, if there is one."""
    try:
        save_checkpoint(disk, step, STATE)
    except CheckpointError as error:
        return re.search("No space left.*", str(error)).group()
    return ""


def test_a_full_disk_at_every_write(tmp_path):
    """The disk is a page larger each time, so that it is full at one write after the other, until none fails."""
    full = []
    for pages in range(1, 64):
        with small_disk(tmp_path / str(pages), pages) as disk:
            first, second = attempt(disk, 1), "" if not checkpoints(disk) else attempt(disk, 2)
            if first:
                assert not checkpoints(disk)
                assert "the last whole one is none" in first
            else:
                assert equal(load_newest(disk)[1], STATE)
                assert not second or "the last whole one is step-00000001" in second
            assert not list(disk.glob(".step*"))  # the room is given back
            full += [bool(first), bool(second)]
        if not (first or second):
            break
    assert sum(full[::2]) >= 4  # tensors, index, state, manifest
    assert sum(full[1::2]) >= 4
    assert not any(full[-2:])
    print(f"full at {sum(full[::2])} places of the first and {sum(full[1::2])} of the second checkpoint")


def test_a_failure_at_every_sync(tmp_path, monkeypatch):
    """A disk on the network may say only then that it is full."""
    save_checkpoint(tmp_path, 1, STATE)
    sync, calls, place = os.fsync, [], 0

    def failing(handle):
        calls.append(handle)
        if len(calls) == place:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    while place < 20:
        place += 1
        calls.clear()
        failure = attempt(tmp_path, 2)
        assert equal(load_newest(tmp_path)[1], STATE)
        if not failure:
            break
        assert "step-0000000" in failure
    assert checkpoints(tmp_path)[-1] == "step-00000002"
    assert place >= 7  # tensors, index, state, manifest, three folders
    print(f"{place - 1} syncs of a checkpoint failed in turn")


@pytest.mark.slow
def test_a_run_on_a_full_disk_ends_with_a_sentence(tmp_path):
    with small_disk(tmp_path / "disk", 400) as disk:
        command = [
            "-m",
            "sage_grpo",
            "train",
            "lab",
            "run.iterations=3",
            "run.save_every=1",
            "run.sample_every=0",
            "run.trackers=[]",
            f"run.checkpoints={disk}",
            f"run.out={tmp_path / 'run'}",
        ]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "could not be written" in said
    assert "No space left on device" in said
    assert "Traceback" not in said
