"""Several rehearsals without values in one process, for importing everything takes longer than one of them.

`python fake_cases.py FOLDER`, with a JSON list of {"recipe": …, "overrides": […], "plant": …} on stdin.
"""

import ctypes
import json
import sys
from pathlib import Path

from sage_grpo.preflight.rehearsal.fake_library import build_shim

if __name__ == "__main__":
    ctypes.CDLL(str(build_shim()))  # before anything imports torch
    import plants

    from sage_grpo.models.library_logging import quiet_libraries
    from sage_grpo.preflight.rehearsal.fake_run import act_out

    quiet_libraries()
    reports = []
    for i, case in enumerate(json.load(sys.stdin)):
        folder = Path(sys.argv[1]) / str(i)
        folder.mkdir()
        with plants.PLANTS[case.get("plant", "")]():
            reports.append(act_out(case["recipe"], case.get("overrides", []), folder, lambda text: None).to_json())
    print(json.dumps(reports))
