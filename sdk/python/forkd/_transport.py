"""Requests to one daemon over kept connections.

A connection that the daemon has closed meanwhile is noticed before it is used, so
that no request has to be repeated: repeating could run a command twice.
"""

from __future__ import annotations

import copy
import json
import math
import os
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import (
    Any,
    AsyncContextManager,
    AsyncGenerator,
    AsyncIterator,
    Dict,
    Generator,
    List,
    Mapping,
    Optional,
    Union,
)
from urllib.parse import urlsplit

from ._data import AsyncData, pieces, whole
from ._errors import ConnectError, DeadlineError, ForkdError, UnavailableError, error_of
from ._http1 import ProtocolError, Reply, chunk, request_head
from ._io import CONNECT_SECS, IO, Address, Stream

DEFAULT_URL = "http://127.0.0.1:8889"
# A stream is never silent for longer than a few seconds while the daemon lives.
STREAM_SECS = 60.0
MAX_IDLE = 16

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
BYTES = {"Content-Type": "application/octet-stream"}

Body = Union[AsyncData, None]


def default_url() -> str:
    """Return the URL of the daemon that the environment names."""
    url = os.environ.get("FORKD_URL")
    if url:
        return url
    chosen = os.environ.get("FORKD_HOME")
    home = chosen
    if not home:
        data = os.environ.get("XDG_DATA_HOME", "")
        home = os.path.join(data if os.path.isabs(data) else os.path.expanduser("~/.local/share"), "forkd")
    path = os.path.abspath(os.path.join(home, "forkd.sock"))
    # Who names a home means its daemon, and not the one that has the port.
    return f"unix://{path}" if chosen or Path(path).is_socket() else DEFAULT_URL


def parse_url(url: str) -> Address:
    """Return where the daemon with a URL listens."""
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Address(path=parts.path)
    if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/"):
        tls = parts.scheme == "https"
        return Address(host=parts.hostname, port=parts.port or (443 if tls else 80), tls=tls)
    raise ValueError(f"malformed URL of the daemon {url!r}: it must be http://host:port or unix:///path")


class _Pool:
    """Connections that wait for their next request. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: List[Stream] = []
        self._pid = os.getpid()

    def take(self) -> Optional[Stream]:
        while True:
            with self._lock:
                if self._pid != os.getpid():  # they are the parent's
                    self._idle, self._pid = [], os.getpid()
                if not self._idle:
                    return None
                stream = self._idle.pop()
            if not stream.pending():
                return stream
            stream.close()

    def give(self, stream: Stream) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(stream)
                return
        stream.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()


class Transport:
    """Sends requests. Its coroutines are as blocking as the IO is."""

    def __init__(self, io: IO, url: Optional[str] = None, token: Optional[str] = None):
        self.io = io
        self.url = url or default_url()
        self.limit: Optional[float] = None  # seconds for each call
        self._address = parse_url(self.url)
        token = token if token is not None else os.environ.get("FORKD_TOKEN", "")
        self._headers = {"Host": self._host()}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = _Pool()

    def _host(self) -> str:
        at = self._address
        if at.path:
            return "localhost"
        host = f"[{at.host}]" if ":" in at.host else at.host
        return host if at.port == (443 if at.tls else 80) else f"{host}:{at.port}"

    def within(self, secs: Optional[float]) -> "Transport":
        """Return a transport whose calls have a time limit; connections are shared."""
        other = copy.copy(self)
        other.limit = secs
        return other

    def deadline(self, timeout: Optional[float]) -> float:
        """Return when work that asks repeatedly ends: after timeout or the limit of a call, whichever is less."""
        return time.monotonic() + min((secs for secs in (timeout, self.limit) if secs is not None), default=math.inf)

    def before(self, end: float) -> "Transport":
        """Return a transport whose calls, if they have a limit, take no longer than until then."""
        return self if self.limit is None else self.within(end - time.monotonic())

    def close(self) -> None:
        """Drop idle connections."""
        self._pool.close()

    async def call(self, method: str, path: str, body: Any = None, headers: Optional[Mapping[str, str]] = None) -> Any:
        """Send JSON, return the JSON of the answer; None if it has no body."""
        if body is not None:
            body, headers = encode(body), {**JSON, **(headers or {})}
        async with self.exchange(method, path, body, headers) as answer:
            return await answer.json()

    def lines(self, method: str, path: str, body: Any = None) -> "AsyncContextManager[Answer]":
        """Send JSON and give an answer that is a stream of events."""
        return self.exchange(method, path, None if body is None else encode(body), LINES, STREAM_SECS)

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        body: Body = None,
        headers: Optional[Mapping[str, str]] = None,
        quiet: Optional[float] = None,
    ) -> "AsyncGenerator[Answer, None]":
        """Send a request and yield its answer; errors are raised.

        If the block is left before the answer was read to its end, the connection
        is closed, which stops what the daemon was doing for it. quiet is for how
        many seconds nothing may come.
        """
        answer = await self.begin(method, path, body, headers, quiet)
        try:
            yield answer
        except BaseException:
            answer.stream.close()
            raise
        self.end(answer)

    async def begin(
        self,
        method: str,
        path: str,
        body: Body = None,
        headers: Optional[Mapping[str, str]] = None,
        quiet: Optional[float] = None,
    ) -> "Answer":
        """Send a request and return its answer, which has to be ended."""
        stream = await self.connect()
        stream.limits.quiet = quiet
        answer = Answer(stream, method, self)
        try:
            with self.talking(stream):
                await self._send(stream, method, path, body, headers or {})
            await answer.begin()
        except BaseException as err:
            if isinstance(err, ForkdError) and answer.reply.complete:
                self.end(answer)
            else:
                stream.close()
            raise
        return answer

    def end(self, answer: "Answer") -> None:
        """Keep the connection of an answer if it was read to its end, or else close it."""
        if answer.reply.reusable:
            self._pool.give(answer.stream)
        else:
            answer.stream.close()

    async def _send(self, stream: Stream, method: str, path: str, body: Body, headers: Mapping[str, str]) -> None:
        data = None if body is None else whole(body)
        head = {**self._headers, **headers}
        if data is not None:
            head["Content-Length"] = str(len(data))
        elif body is not None:
            head["Transfer-Encoding"] = "chunked"
        elif method != "GET":
            head["Content-Length"] = "0"
        try:
            await stream.send(request_head(method, path, head) + (data or b""))
            if body is not None and data is None:
                await _send_pieces(stream, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused before all of it was read; the answer says why

    async def duplex(self, method: str, path: str, headers: Mapping[str, str]) -> Stream:
        """Begin a request whose body is sent as chunks while its answer is read."""
        stream = await self.connect()
        try:
            with self.talking(stream):
                head = {**self._headers, **headers, "Transfer-Encoding": "chunked"}
                await stream.send(request_head(method, path, head))
        except BaseException:
            stream.close()
            raise
        return stream

    @contextmanager
    def talking(self, stream: Optional[Stream] = None) -> Generator[None, None, None]:
        """Turn failures of a connection into errors of forkd."""
        try:
            yield
        except ForkdError:
            raise
        except (TimeoutError, socket.timeout) as err:
            limit = "its time limit" if self.limit is None else f"{self.limit:.3g} s"
            why = f"the call took longer than {limit}"
            if stream is not None and stream.limits.silent:
                why = f"nothing came for {stream.limits.quiet:.3g} s"
            raise DeadlineError(f"waiting for the daemon at {self.url}: {why}") from err
        except (ProtocolError, OSError) as err:
            raise UnavailableError(f"talking to the daemon at {self.url}: {err or type(err).__name__}") from err

    async def connect(self) -> Stream:
        """Return a connection, a kept one if possible."""
        stream = self._pool.take()
        until = None if self.limit is None else time.monotonic() + self.limit
        if stream is None:
            wait = CONNECT_SECS if self.limit is None else min(CONNECT_SECS, max(self.limit, 0.001))
            try:
                stream = await self.io.connect(self._address, wait)
            except OSError as err:
                raise ConnectError(self.url, err) from err
        stream.limits.until, stream.limits.quiet = until, None
        return stream


async def _send_pieces(stream: Stream, body: AsyncData) -> None:
    async for piece in pieces(body):
        await stream.send(chunk(piece))
        if stream.pending():
            return  # the answer is here already, so the rest is not wanted
    await stream.send(chunk(b""))


class Answer:
    """An answer, as it comes in."""

    def __init__(self, stream: Stream, method: str, transport: Transport):
        self.stream = stream
        self.reply = Reply(method)
        self._transport = transport

    async def begin(self) -> None:
        """Wait for the head of the answer; one with an error is raised."""
        await self.head()
        if self.reply.status >= 400:
            raise _read_error(self.reply.status, self.reply.reason, await self.read(1 << 20))

    async def head(self) -> None:
        """Wait for the head of the answer."""
        while not self.reply.status:
            await self._more()

    async def _more(self) -> None:
        with self._transport.talking(self.stream):
            self.reply.feed(await self.stream.receive())

    async def read(self, limit: Optional[int] = None) -> bytes:
        """Return the body, or no more than limit bytes of it."""
        parts: List[bytes] = []
        size = 0
        async for piece in self.pieces():
            parts.append(piece)
            size += len(piece)
            if limit is not None and size >= limit:
                break
        return b"".join(parts)[:limit]

    async def json(self) -> Any:
        """Return the value that the body holds, None if it is empty."""
        content = await self.read()
        try:
            return json.loads(content) if content else None
        except ValueError as err:
            raise ForkdError(f"the answer is not JSON: {err}") from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        while True:
            piece = self.reply.take()
            if piece:
                yield piece
            elif self.reply.complete:
                return
            else:
                await self._more()

    async def events(self) -> AsyncIterator[Dict[str, Any]]:
        """Yield JSON objects, one a line; one that tells of an error is raised."""
        async for event in self.objects():
            if "error" in event:
                raise error_of(event["error"])
            yield event

    async def objects(self) -> AsyncIterator[Dict[str, Any]]:
        """Yield JSON objects, one a line."""
        while True:
            line = self.reply.take_line()
            if line.strip():
                yield json.loads(line)
            elif not line:
                if self.reply.complete:
                    return  # without a line that was cut short
                await self._more()


def encode(body: Any) -> bytes:
    """Return the JSON of a body."""
    return json.dumps(body, allow_nan=False).encode()


def cut_off() -> ForkdError:
    """Return the error of a stream that ends before it should."""
    return UnavailableError("the daemon stopped answering half way")


def _read_error(status: int, reason: str, content: bytes) -> ForkdError:
    try:
        return error_of(json.loads(content), status)
    except (ValueError, KeyError, TypeError):
        return ForkdError(
            f"the answer {status} {reason} is not one of forkd's",
            hint="check that FORKD_URL names a forkd daemon",
            status=status,
        )
