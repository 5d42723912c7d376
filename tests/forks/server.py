"""The process that imports once and forks for every request: `python -m forks.server SOCKET`.

It imports when the first request comes, ends when its standard input is closed, and then kills what still runs.
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import pkgutil
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from importlib.machinery import PathFinder

import shared_plans
from forks import popen, ranks, wire
from sage_grpo.errors import UserError

LIBRARIES = (
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "transformers",
    "diffusers",
    "peft",
    "matplotlib.pyplot",
    "pytest",
)
THREADED = ("onnxruntime", "ray")  # they start threads, which a fork would lose: imported by whoever needs them
# Read once, by a library that is imported or by the interpreter: where they differ, the start must be real.
FIXED = ("OMP_", "MKL_", "OPENBLAS", "KMP_", "HF_", "TRANSFORMERS_", "DIFFUSERS_", "TORCH", "PYTORCH", "CUDA_", "LD_")
FIXED += ("PYTHON", "MPL", "XDG_", "HOME", "RAY_", "ACCELERATE_", "COVERAGE_RCFILE")
FREE = ("LD_LIBRARY_PATH", "RAY_CLIENT_MODE", "PYTORCH_ENABLE_MPS_FALLBACK")  # set by libraries that a test imports
FREE += ("PYTHONPATH", "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCH_NCCL_", "TORCHINDUCTOR_")

# They must act before torch is imported, or measure the memory of all that a process has.
ALONE = ("sage_grpo.preflight.rehearsal.fake_cuda", "sage_grpo.preflight.rehearsal.stage_worker")


def load():
    """All of the package, and the libraries' classes that its modules name."""
    import sage_grpo

    sys.modules.update(dict.fromkeys(THREADED))
    for module in pkgutil.walk_packages(sage_grpo.__path__, "sage_grpo."):
        if module.name != "sage_grpo.__main__":
            with contextlib.suppress(ImportError, UserError):
                importlib.import_module(module.name)
    for name in THREADED:
        del sys.modules[name]
    for name in LIBRARIES:
        importlib.import_module(name)
    shared_plans.install()


def fixed(environment):
    return {k: v for k, v in environment.items() if k.startswith(FIXED) and not k.startswith(FREE)}


class Server:
    def __init__(self, path):
        self.environment, self.path = fixed(os.environ), list(sys.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector = selectors.DefaultSelector()
        self.living = {}  # connection by process
        self.loaded = False

    def refuses(self, request):
        """Why a fork would not be what was asked for; None where it would be."""
        words = request["arguments"]
        words = words[1:] if words[:1] == ["-u"] else words
        if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c", "-")):
            return "an option of the interpreter's own"
        if words[0] == "-m" and words[1] in ALONE:
            return "a module that must have an interpreter of its own"
        differs = dict(fixed(request["environment"]).items() ^ self.environment.items())
        if differs:
            return f"an environment that is read when a library is imported: {', '.join(differs)}"
        paths = [path for path in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
        found = PathFinder.find_spec("sage_grpo", paths)
        if found and os.path.realpath(found.origin) != os.path.realpath(sys.modules["sage_grpo"].__file__):
            return "another copy of the package"
        return None

    def serve(self):
        """The request to carry out, in a fork; None when the work is done, in the server."""
        wake, wakened = socket.socketpair()
        for end in (wake, wakened):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        before = signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
        for source in (self.listener, wake, sys.stdin):
            self.selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is wake:
                    wake.recv(4096)
                    self.reap()
                elif key.fileobj is sys.stdin:
                    if not os.read(0, 1):
                        signal.set_wakeup_fd(before)
                        self.end()
                        return None
                else:
                    connection, _ = self.listener.accept()
                    work = self.fork(connection)
                    if work:
                        signal.set_wakeup_fd(before)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        self.selector.close()
                        for end in (wake, wakened, self.listener, *self.living.values()):
                            end.close()
                        return work

    def fork(self, connection):
        try:
            request, descriptors = wire.receive(connection)
        except (ConnectionError, ValueError):
            connection.close()
            return None
        if not self.loaded:
            load()
            gc.collect()
            gc.freeze()
            self.loaded = True
        threads = os.listdir("/proc/self/task")
        why = self.refuses(request) or (f"the server has threads: {threads}" if len(threads) > 1 else None)
        if why and os.environ.get("DEBUG_FORKS"):
            print("real start:", why, request["arguments"], file=sys.stderr, flush=True)
        ready, done = os.pipe()
        pid = -1 if why else os.fork()
        if pid == 0:
            connection.close()
            os.close(ready)
            return request, descriptors, done
        os.close(done)
        if not why:
            os.read(ready, 1)  # it is now what was asked for, in a session of its own if so: its starter may signal it
        for number in (ready, *descriptors.values()):
            os.close(number)
        with contextlib.suppress(OSError):  # the client is gone; what it asked for runs
            wire.answer(connection, pid)
        if why:
            connection.close()
        else:
            self.living[pid] = connection
        return None

    def reap(self):
        while self.living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            connection = self.living.pop(pid)
            with contextlib.suppress(OSError):
                wire.answer(connection, status)
            connection.close()

    def end(self):
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)


def become(request, descriptors, path):
    """This fork takes on what a new interpreter would have from its parent."""
    spare = {
        number: os.dup2(given, 200 + i, inheritable=False) for i, (number, given) in enumerate(descriptors.items())
    }
    for given in set(descriptors.values()):
        os.close(given)
    for number, given in spare.items():
        os.dup2(given, number, inheritable=True)
        os.close(given)
    os.chdir(request["folder"])
    if request["new_session"]:
        os.setsid()
    environment = request["environment"]
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    streams = [io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")]
    for number, errors in ((1, "strict"), (2, "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        lines = number == 2 or os.isatty(number) or unbuffered
        streams.append(io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines))
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server may be one that a shell left alone
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    if environment.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    given = [os.path.abspath(p) for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [*given, *path]
    importlib.invalidate_caches()


def carry_out(arguments):
    """`python` with these arguments, in this process."""
    sys.orig_argv = [sys.executable, *arguments]
    together = ranks.asked(arguments)
    if together:
        sys.exit(ranks.run(*together))
    if arguments[0] == "-u":
        arguments = arguments[1:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, write_through=True)
    word, rest = arguments[0], arguments[1:]
    if word == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        if "." in rest[0]:
            sys.modules.pop(rest[0], None)  # or runpy warns that it was imported before
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif word in ("-c", "-"):
        code, sys.argv = (rest[0], ["-c", *rest[1:]]) if word == "-c" else (sys.stdin.read(), ["-", *rest])
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>" if word == "-c" else "<stdin>", "exec"), main.__dict__)
    else:
        sys.argv = [word, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(word)))
        runpy.run_path(word, run_name="__main__")


def ending(work):
    """Exit code of what `work` does, with a traceback that begins in it."""
    try:
        work()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def leave(code):
    """As the interpreter does, but for taking apart thousands of modules that the fork shares with the server."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def main():
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = [place for place in sys.path if place not in ("", os.getcwd(), tests)]
    popen.install()  # before a library keeps a name for it
    work = Server(sys.argv[1]).serve()
    if work:
        request, descriptors, done = work
        become(request, descriptors, path)
        os.close(done)
        leave(ending(lambda: carry_out(request["arguments"])))


if __name__ == "__main__":
    main()
