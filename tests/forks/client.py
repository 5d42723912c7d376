"""`python`, `sage-grpo` or `torchrun` on the path of a shell script: a fork in its place, or else the real one."""

import os
import signal
import sys

import wire  # beside this file: it is started without a package


def main(program, python):
    """`program` is the script of that name beside `python`, or `python` itself."""
    script = os.path.join(os.path.dirname(python), program)
    arguments = sys.argv[1:] if program == "python" else [script, *sys.argv[1:]]
    try:
        connection, pid = wire.ask(arguments, dict(os.environ), os.getcwd(), {0: 0, 1: 1, 2: 2})
    except wire.Refused:
        os.execv(python, [python, *arguments])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    status = wire.ended(connection, wait=True)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))
