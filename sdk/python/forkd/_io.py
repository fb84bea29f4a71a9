"""What the SDK needs of the world, and the blocking way to have it.

All of the SDK's work is written once, as coroutines over these interfaces. On
asyncio they suspend. Over BlockingIO they never do: its coroutines block instead,
so that a coroutine over it is done after one step. That is what run takes.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generic,
    Iterator,
    List,
    Optional,
    Protocol,
    TypeVar,
)

T = TypeVar("T")

PIECE = 256 << 10
CONNECT_SECS = 10.0


@dataclass(frozen=True)
class Address:
    """Where a daemon listens: at a path, or at a host and port."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False


class Limits:
    """Until when a stream may be waited for.

    until is a time of time.monotonic(), quiet a number of seconds for which
    nothing may come.
    """

    until: Optional[float] = None
    quiet: Optional[float] = None
    silent = False  # what the last wait is for is a sign of life, as the time of the call is longer

    def left(self) -> Optional[float]:
        """Return for how many seconds to wait; TimeoutError if none are left."""
        left = None if self.until is None else self.until - time.monotonic()
        self.silent = self.quiet is not None and (left is None or self.quiet < left)
        if self.silent:
            return self.quiet
        if left is not None and left <= 0:
            raise TimeoutError("the time limit of the call passed")
        return left


class Stream(Protocol):
    """A connection. Failures are OSErrors; to wait for too long is TimeoutError."""

    limits: Limits

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return what has come, as soon as something has; nothing at the end."""
        ...

    async def end(self) -> None:
        """Send nothing more."""
        ...

    def pending(self) -> bool:
        """Tell whether something has come that was not received, or the end."""
        ...

    def close(self) -> None: ...


class Job(Protocol):
    """Work that goes on at the side."""

    async def wait(self) -> None:
        """Wait until it has ended. How it ended is its own affair."""
        ...

    def done(self) -> bool: ...

    def cancel(self) -> None:
        """End it if it can be ended. A thread cannot: it ends by itself."""
        ...


class IO(Protocol):
    """The world."""

    async def connect(self, address: Address, timeout: float) -> Stream: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> Job:
        """Begin work at the side. It must not raise."""
        ...

    async def finish(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]], secs: Optional[float]
    ) -> T:
        """Return what work returns, within so many seconds, or else undo it.

        If the time is over, or who waits is interrupted or cancelled, the work goes on
        at the side, and is undone there when it is done.
        """
        ...

    async def sleep(self, secs: float) -> None: ...


class BlockingIO:
    """The blocking world: sockets and threads."""

    async def connect(self, address: Address, timeout: float) -> Stream:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout)
                sock.connect(address.path)
            except BaseException:
                sock.close()
                raise
            return _SocketStream(sock)
        sock = socket.create_connection((address.host, address.port), timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
        except BaseException:
            sock.close()
            raise
        return _SocketStream(sock)

    def spawn(self, work: Coroutine[Any, Any, None]) -> Job:
        return _Thread(work)

    async def finish(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]], secs: Optional[float]
    ) -> T:
        return _Finish(work, undo).wait(secs)

    async def sleep(self, secs: float) -> None:
        time.sleep(secs)


def readable(fd: int) -> bool:
    """Tell whether something has come on a socket, be it its end."""
    if fd < 0:
        return True
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([fd], [], [], 0)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class _SocketStream:
    def __init__(self, sock: socket.socket):
        self.limits = Limits()
        self._sock = sock

    async def send(self, data: bytes) -> None:
        self._sock.settimeout(self.limits.left())
        self._sock.sendall(data)

    async def receive(self) -> bytes:
        # A time limit is the socket's, so whoever sends at the same time, in another
        # thread, shares it.
        self._sock.settimeout(self.limits.left())
        return self._sock.recv(PIECE)

    async def end(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def pending(self) -> bool:
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        return readable(self._sock.fileno())

    def close(self) -> None:
        # Wakes whoever waits for it in another thread.
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


class _Thread:
    def __init__(self, work: Coroutine[Any, Any, None]):
        self._thread = threading.Thread(target=run, args=(work,), name="forkd", daemon=True)
        self._thread.start()

    async def wait(self) -> None:
        self._thread.join()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def cancel(self) -> None:
        pass


class _Finish(Generic[T]):
    """Work in a thread that the program does not end before."""

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]]):
        self._work = work
        self._undo = undo
        self._lock = threading.Lock()
        self._given_up = False
        self._results: List[T] = []
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="forkd")

    def wait(self, secs: Optional[float]) -> T:
        try:
            self._thread.start()
            self._thread.join(secs)
            if self._thread.is_alive():
                raise TimeoutError("the time limit of the call passed")
            if self._error is not None:
                raise self._error
            return self._results.pop()
        finally:
            with self._lock:
                self._given_up = True
                left = list(self._results)
            for result in left:  # it was done, but nobody has it
                self._take_back(result)

    def _run(self) -> None:
        try:
            result = run(self._work)
        except BaseException as err:
            self._error = err
            return
        with self._lock:
            if not self._given_up:
                self._results.append(result)
                return
        self._take_back(result)

    def _take_back(self, result: T) -> None:
        try:
            run(self._undo(result))  # type: ignore[arg-type]
        except Exception:
            pass  # there is nobody to tell


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise TypeError("something asynchronous was given to a blocking call; use the Async classes for it")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items of an asynchronous iterator that never suspends."""
    try:
        while True:
            try:
                item = run(items.__anext__())  # type: ignore[arg-type]
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())
