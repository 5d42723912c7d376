"""What a client and the server say to each other. Only the standard library: a client must start at once."""

import json
import os
import socket
import struct

SERVER = "SAGE_GRPO_FORK_SERVER"  # path of the socket; where it is not set, all starts are real
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")


class Refused(Exception):
    """The server cannot stand in for this start: a real one is needed."""


def ask(arguments, environment, folder, descriptors, new_session=False):
    """Ask for a fork. Returns the connection, which will say how the process ended, and the process's number.

    `arguments` are those after `python`; `descriptors` maps a number in the new process to an open one here.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            connection.connect(os.environ[SERVER])
        except (OSError, KeyError) as error:
            raise Refused(f"no server: {error}") from error
        request = {"arguments": arguments, "environment": environment, "folder": folder, "new_session": new_session}
        request["descriptors"] = list(descriptors)
        data = json.dumps(request).encode("utf-8", "surrogateescape")
        socket.send_fds(connection, [LENGTH.pack(len(data))], list(descriptors.values()))
        connection.sendall(data)
        answer = _read(connection, STATUS.size)
        if len(answer) < STATUS.size:
            raise Refused("the server ended")
        (pid,) = STATUS.unpack(answer)
        if pid <= 0:
            raise Refused("not the server's environment or kind of command")
    except BaseException:
        connection.close()
        raise
    return connection, pid


def receive(connection):
    """A request as the server reads it: what was asked for, and the open descriptors by their number there."""
    head, received, _, _ = socket.recv_fds(connection, LENGTH.size, 64)
    if len(head) < LENGTH.size:
        raise ConnectionError("a client left")
    request = json.loads(_read(connection, LENGTH.unpack(head)[0]).decode("utf-8", "surrogateescape"))
    return request, dict(zip(request.pop("descriptors"), received, strict=True))


def answer(connection, number):
    connection.sendall(STATUS.pack(number))


def ended(connection, *, wait):
    """How the process ended, as `os.waitpid` says it; None while it runs. A server that is gone counts as a kill."""
    connection.setblocking(wait)
    try:
        data = _read(connection, STATUS.size)
    except BlockingIOError:
        return None
    return STATUS.unpack(data)[0] if len(data) == STATUS.size else 9


def _read(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            break
        data += part
    return data
