"""`sage-grpo rehearse --fake-cuda`: a recipe on CUDA tensors without values, in a separate process.

Its changes to torch must never reach a process that trains. So this module has two sides: `rehearse_on_fake_cuda`
starts the process and reads its report, and `python -m sage_grpo.preflight.rehearsal.fake_cuda` is that process.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sage_grpo.config import ConfigError
from sage_grpo.preflight.rehearsal.fake_library import build_shim
from sage_grpo.preflight.rehearsal.fake_report import FakeCudaReport

REPORT = "fake-cuda.json"


def rehearse_on_fake_cuda(
    source: str | Path,
    overrides: Sequence[str],
    folder: Path,
    emit: Callable[[str], None] = print,
    processes: int | None = None,
) -> FakeCudaReport:
    """Rehearse a recipe on CUDA tensors without values, in a separate process, and return the report.

    The rehearsal covers load, sample, rollout, decode, score, checks, update, anchor, EMA, gauge and save; then a
    resume and a second iteration; then export. `folder` must be new or empty.

    The separate process is the first of `processes`; the others are pretended. None means two on each axis of the
    recipe's layout.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; a rehearsal needs a folder of its own")
    library = build_shim(emit)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, str(library), str(folder), str(processes or 0), str(source), *overrides]
    with tempfile.TemporaryFile("w+") as noise:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=noise, text=True) as process:
            for line in process.stdout or ():
                emit(line.strip())
        if not (folder / REPORT).exists():
            noise.seek(0)
            last = (noise.read().strip().splitlines() or ["it said nothing"])[-1]
            raise ConfigError(f"the rehearsal's process ended with code {process.returncode}: {last}")
    return FakeCudaReport.from_json(json.loads((folder / REPORT).read_text()))


def main(library: str, folder: str, processes: str, source: str, *overrides: str) -> None:
    ctypes.CDLL(library)  # before torch is imported
    import importlib.util  # noqa: PLC0415

    from sage_grpo.files import atomic_write  # noqa: PLC0415
    from sage_grpo.preflight.rehearsal.fake_run import act_out  # noqa: PLC0415

    if importlib.util.find_spec("diffusers"):
        from sage_grpo.models.library_logging import quiet_libraries  # noqa: PLC0415

        quiet_libraries()
    emit = partial(print, flush=True)
    report = act_out(source, overrides, Path(folder), emit, int(processes) or None)
    atomic_write(Path(folder) / REPORT, json.dumps(report.to_json()).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
