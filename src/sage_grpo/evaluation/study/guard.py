"""Limits on what one stranger may take of the study server: connections, and places for raters.

Addresses are kept in memory for an hour and never written down.
"""

import ipaddress
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 256  # each has a thread
REQUEST_SECONDS = 30.0  # until a request has come whole, however slowly its parts come
JOINS = 40  # of one address in an hour: a class behind one router, and no more
HOUR = 3600.0


class JoinLimit:
    """A limit on how many raters may join from one address in an hour.

    Args:
        now: A function that returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.lock = now, threading.Lock()
        self.joined: dict[str, deque[float]] = {}

    def admits(self, address: str) -> bool:
        """Count one more rater from this address and return True, or return False if the address is at its limit."""
        with self.lock:
            now, place = self.now(), network_of(address)
            for other in [key for key, times in self.joined.items() if times[-1] < now - HOUR]:
                del self.joined[other]
            times = self.joined.setdefault(place, deque())
            while times and times[0] < now - HOUR:
                times.popleft()
            if len(times) >= JOINS:
                return False
            times.append(now)
            return True


def network_of(address: str) -> str:
    """Return the address itself if it is IPv4, or its network of 64 bits (/64) if it is IPv6.

    All machines of one customer share such a network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


class GuardedServer(ThreadingHTTPServer):
    """A server with a thread for each connection, and a limit on connections.

    When the server is full, it closes the connection that has waited longest without a request, to make room.

    A handler puts its connection into `waiting`, with the time since when a request is due, and removes the connection
    when it answers.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.waiting: dict[socket.socket, float] = {}
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            waiting = sorted(self.waiting.items(), key=lambda item: item[1])
            if waiting:
                hang_up(waiting[0][0])
            if not waiting or not self.places.acquire(timeout=1.0):
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.pop(request, None)
            self.places.release()

    def service_actions(self) -> None:
        """Close connections whose request has not come in time. The server calls this method between requests."""
        late = time.monotonic() - REQUEST_SECONDS
        for request, since in list(self.waiting.items()):
            if since < late:
                hang_up(request)


def hang_up(request: socket.socket) -> None:
    """Shut a connection down, so that the thread that waits for its request sees the end of the data."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
