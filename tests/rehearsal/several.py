"""Several recipes rehearsed by the same two processes, one after the other: libraries are imported once.

torchrun … -m rehearsal.several FOLDER RECIPE…
"""

import json
import sys
from pathlib import Path

from rich.console import Console

from sage_grpo.config import load_recipe
from sage_grpo.distributed.launch import recording_failures
from sage_grpo.distributed.processes import launched, launched_rank, leave
from sage_grpo.models.library_logging import quiet_libraries
from sage_grpo.preflight.rehearsal.toy import Rehearsal
from sage_grpo.preflight.rehearsal.worker import run_iterations


def main():
    folder, rank, facts = Path(sys.argv[1]), launched_rank(), {}
    quiet_libraries()
    for name in sys.argv[2:]:
        record, small = Rehearsal(name), load_recipe(folder / name / "toy.yaml")
        with recording_failures(folder, rank, launched()):
            run_iterations(load_recipe(name), small, folder / name, record, print, Console(quiet=True))
        facts[name] = record.facts
    if rank == 0:
        (folder / "facts.json").write_text(json.dumps(facts))
    leave()


if __name__ == "__main__":
    main()
