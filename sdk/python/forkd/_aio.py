"""The asynchronous world: asyncio."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any, Awaitable, Callable, Coroutine, Optional, Set, TypeVar, cast

from ._io import PIECE, Address, Job, Limits, Stream, readable

T = TypeVar("T")

# How much is kept of what came before the other side is asked to wait.
MOST_PENDING = 1 << 20


class AsyncIO:
    """The running event loop."""

    async def connect(self, address: Address, timeout: float) -> Stream:
        loop = asyncio.get_running_loop()
        if address.path:
            opening = loop.create_unix_connection(_LoopStream, address.path)
        else:
            tls = ssl.create_default_context() if address.tls else None
            opening = loop.create_connection(  # type: ignore[assignment]
                _LoopStream, address.host, address.port, ssl=tls
            )
        try:
            _, stream = await asyncio.wait_for(opening, timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"no connection after {timeout:g} s") from None
        return stream

    def spawn(self, work: Coroutine[Any, Any, None]) -> Job:
        return _Task(work)

    async def finish(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]], secs: Optional[float]
    ) -> T:
        task = asyncio.get_running_loop().create_task(work)
        try:
            return await asyncio.wait_for(asyncio.shield(task), secs)
        except BaseException as err:
            if not task.done() or not task.cancelled() and task.exception() is None:
                self.spawn(_undo(task, undo))
            if isinstance(err, asyncio.TimeoutError):
                raise TimeoutError("the time limit of the call passed") from None
            raise

    async def sleep(self, secs: float) -> None:
        await asyncio.sleep(secs)


async def _undo(task: "asyncio.Task[T]", undo: Callable[[T], Awaitable[Any]]) -> None:
    try:
        await undo(await task)
    except Exception:
        pass  # there is nobody to tell


class _Task:
    # The loop only has weak references to its tasks.
    _running: Set["asyncio.Task[None]"] = set()

    def __init__(self, work: Coroutine[Any, Any, None]):
        self._task = asyncio.get_running_loop().create_task(work)
        self._running.add(self._task)
        self._task.add_done_callback(self._running.discard)

    async def wait(self) -> None:
        # To cancel who waits does not cancel the work.
        await asyncio.wait([self._task])

    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()


class _LoopStream(asyncio.Protocol):
    """A connection of an event loop, with one receiver and one sender at a time."""

    def __init__(self) -> None:
        self.limits = Limits()
        self._loop = asyncio.get_running_loop()
        self._transport: Optional[asyncio.Transport] = None
        self._data = bytearray()
        self._ended = False
        self._error: Optional[Exception] = None
        self._reader: Optional["asyncio.Future[None]"] = None
        self._writer: Optional["asyncio.Future[None]"] = None
        self._full = False  # what is to be sent waits
        self._halted = False  # what comes waits

    async def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._check()
        self._transport.write(data)
        while self._full:
            self._writer = self._loop.create_future()
            await self._wait(self._writer)
            self._check()

    def _check(self) -> None:
        if self._error is not None or self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed") from self._error

    async def receive(self) -> bytes:
        while not self._data and not self._ended:
            self._reader = self._loop.create_future()
            await self._wait(self._reader)
        if not self._data and self._error is not None:
            raise self._error
        data, self._data = bytes(self._data), bytearray()
        if self._halted and self._transport is not None and not self._ended:
            self._halted = False
            self._transport.resume_reading()
        return data

    async def _wait(self, event: "asyncio.Future[None]") -> None:
        left = self.limits.left()
        if left is None:
            await event
            return
        timer = self._loop.call_later(left, _expire, event)
        try:
            await event
        finally:
            timer.cancel()

    async def end(self) -> None:
        self._check()
        cast(asyncio.Transport, self._transport).write_eof()

    def pending(self) -> bool:
        try:
            same = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            same = False
        # A stream of a loop that has ended is of no use any more.
        if self._data or self._ended or not same or self._transport is None:
            return True
        # The loop may not have had the time to tell.
        sock = self._transport.get_extra_info("socket")
        return sock is None or readable(sock.fileno())

    def close(self) -> None:
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > MOST_PENDING and not self._halted and self._transport is not None:
            self._halted = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self._ended = True
        _wake(self._reader)
        # What is to be sent may still be; TLS has no such state.
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Optional[Exception]) -> None:
        if exc is not None:
            self._rescue()
        self._ended = True
        self._error = exc
        self._transport = None
        self._full = False
        _wake(self._reader)
        _wake(self._writer)

    def _rescue(self) -> None:
        """Take what has come before sending failed: it may say why nobody listens."""
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return
        try:
            while len(self._data) < MOST_PENDING:
                data = os.read(transport.get_extra_info("socket").fileno(), PIECE)
                if not data:
                    return
                self._data += data
        except OSError:
            pass  # there is no more

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        _wake(self._writer)


def _wake(event: "Optional[asyncio.Future[None]]") -> None:
    if event is not None and not event.done():
        event.set_result(None)


def _expire(event: "asyncio.Future[None]") -> None:
    if not event.done():
        event.set_exception(TimeoutError("a time limit passed"))
