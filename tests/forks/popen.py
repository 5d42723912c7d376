"""`subprocess.Popen` whose Python processes are forks of the server's, where it can stand in for a start."""

import os
import subprocess
import sys

from forks import wire

REAL = subprocess.Popen


class Popen(REAL):
    """The class of `subprocess` itself for every other program, and where the server refuses."""

    connection = None

    def _execute_child(
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        restore_signals,
        gid,
        gids,
        uid,
        umask,
        start_new_session,
        *rest,  # Python 3.11's process_group
    ):
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        if words[:1] == [sys.executable] and not (shell or preexec_fn or executable):
            environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
            ends = {0: p2cread, 1: c2pwrite, 2: errwrite} | {number: number for number in pass_fds}
            descriptors = {number: number if end == -1 else end for number, end in ends.items()}
            folder = os.path.abspath(os.fsdecode(cwd)) if cwd else os.getcwd()
            try:
                self.connection, self.pid = wire.ask(words[1:], environment, folder, descriptors, start_new_session)
            except wire.Refused:
                pass
            else:
                self._child_created = True
                self._close_pipe_fds(*pipes)
                return
        more = (restore_signals, gid, gids, uid, umask, start_new_session, *rest)
        first = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell)
        super()._execute_child(*first, *pipes, *more)

    def _try_wait(self, wait_flags):
        if self.connection is None:
            return super()._try_wait(wait_flags)
        status = wire.ended(self.connection, wait=not wait_flags & os.WNOHANG)
        return (0, 0) if status is None else (self.pid, status)

    def _internal_poll(self, *rest, **more):
        if self.connection is None:
            return super()._internal_poll(*rest, **more)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def install():
    subprocess.Popen = Popen


def uninstall():
    subprocess.Popen = REAL
