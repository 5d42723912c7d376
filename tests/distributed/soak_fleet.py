"""The fleet of a soak: a real one on Ray Serve, or its gate and scorer in processes of our own where Ray is too heavy.

python -m distributed.soak_fleet PORT NOTES SEED
"""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress

from distributed.launcher import environment
from distributed.soak_notes import descendants
from rewards.test_client import free_port

HOST, BATCH, SECONDS = "127.0.0.1", 4, 120
RAY_STARTS = 3
PATIENT_RAY = {  # a starved process is not a dead one
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_period_ms": "10000",
    "RAY_health_check_failure_threshold": "20",
}


def start_ray(stack, seed):
    """Ray gives its agent a quarter of a minute to start, which can be too little beside other work."""
    import ray

    from serve.chaos import running_fleet

    os.environ.update(PATIENT_RAY)
    for _ in range(RAY_STARTS):
        try:
            fleet = running_fleet(free_port(), seconds=SECONDS, scorer="distributed.soak_faults:Planted", seed=seed)
            return stack.enter_context(fleet)
        except Exception as error:  # Ray has no kind of its own for it
            print(f"Ray did not start: {error}", flush=True)
            for pid in descendants(os.getpid())[1:]:  # it leaves them behind
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ray.shutdown()
    return None


@contextmanager
def own_server(seed):
    """A process that is started again whenever it dies."""
    port, notes, over, living = free_port(), tempfile.mkdtemp(prefix="fleet-"), threading.Event(), []

    def keep():
        while not over.is_set():
            command = [sys.executable, "-m", "distributed.soak_fleet", str(port), notes, str(seed)]
            living[:] = [subprocess.Popen(command, env=environment())]
            living[0].wait()

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{port}", notes
    finally:
        over.set()
        living[0].kill()
        thread.join()
        shutil.rmtree(notes)


def main():
    import uvicorn

    from distributed.soak_faults import Planted
    from sage_grpo.rewards.remote.wire import Limits
    from sage_grpo.serve.gate import Gate, ScorerEndpoint, fingerprint
    from sage_grpo.serve.scorer import Scorer

    port, notes, seed = sys.argv[1:]
    logging.getLogger("sage_grpo").setLevel(logging.ERROR)  # failures are planted: no need to tell of each
    scorer = Scorer(Planted(notes, int(seed)), BATCH, SECONDS)

    async def ask(body, count):
        (answer,) = await asyncio.to_thread(scorer.answer, [body])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find():
        return {"planted": ScorerEndpoint(scorer.names, False, ask)}

    gate = Gate(fingerprint(os.environ["SAGE_GRPO_TOKEN"]), Limits(), SECONDS, find)
    uvicorn.run(gate.app, host=HOST, port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
