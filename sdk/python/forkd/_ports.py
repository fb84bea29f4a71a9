"""The TCP ports of a sandbox, asynchronously."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Union

from ._controller import box_route
from ._data import exact
from ._errors import DeadlineError, PortClosedError, UnsupportedError
from ._http1 import ProtocolError, Reply, request_head
from ._io import Stream
from ._opening import Opening
from ._transport import Answer, Transport


@dataclass(frozen=True)
class Response:
    """What an HTTP server in a sandbox answered."""

    status: int
    headers: Dict[str, str]  # names in lower case
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class AsyncPorts:
    """Reaches what listens on the TCP ports of a sandbox."""

    def __init__(self, transport: Transport, id: str):
        self._transport = transport
        self._id = id

    def url(self, port: int) -> str:
        """Return the URL under which the daemon passes HTTP on to a port.

        WebSocket works, too. If the daemon has a token, requests need it as
        "Authorization: Bearer TOKEN".
        """
        if self._transport.url.startswith("unix:"):
            raise UnsupportedError(
                f"the daemon at {self._transport.url} has no URL for others",
                hint="name its TCP address, as with FORKD_URL=http://127.0.0.1:8889, or use ports.request or ports.open",
            )
        return self._transport.url.rstrip("/") + box_route(self._id, "ports", str(port)) + "/"

    def open(self, port: int) -> "Opening[AsyncConnection]":
        """Open a TCP connection to a port."""
        return Opening(self._open(port), AsyncConnection.close)

    async def _open(self, port: int) -> "AsyncConnection":
        headers = {"Connection": "Upgrade", "Upgrade": "tcp-chunked"}
        answer = await self._transport.begin("GET", box_route(self._id, "tcp", str(port)), None, headers)
        if answer.reply.status != 101:
            answer.stream.close()
            raise UnsupportedError(f"opening port {port}: the daemon's answer {answer.reply.status} is no connection")
        answer.stream.limits.until = None  # the limit of a call was for its beginning
        return AsyncConnection(self._transport, _Unchunked(answer.stream, answer.reply.rest(), port))

    async def wait(self, port: int, timeout: float = 30.0) -> None:
        """Return when something listens on a port."""
        begun, end = time.monotonic(), self._transport.deadline(timeout)
        pause = 0.005
        while True:
            try:
                await (await AsyncPorts(self._transport.before(end), self._id).open(port)).close()
                return
            except (PortClosedError, DeadlineError):
                if time.monotonic() >= end:
                    raise DeadlineError(f"nothing listens on port {port} after {end - begun:.3g} s") from None
            await self._transport.io.sleep(min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 1.5, 0.25)

    async def request(
        self,
        port: int,
        path: str = "/",
        method: str = "GET",
        body: Optional[Union[str, bytes]] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Response:
        """Send an HTTP request to a port and return the answer, whatever its status."""
        connection = await self.open(port)
        try:
            head = {"Host": f"localhost:{port}", "Connection": "close", **(headers or {})}
            data = b"" if body is None else exact(body)
            if body is not None:
                head["Content-Length"] = str(len(data))
            await connection.send(request_head(method, path, head) + data)
            answer = Answer(connection.stream, method, self._transport)
            await answer.head()
            return Response(answer.reply.status, answer.reply.headers, await answer.read())
        finally:
            await connection.close()


class _Unchunked:
    """A connection on which what comes is in chunks: the last one tells an end from a break."""

    def __init__(self, stream: Stream, first: bytes, port: int):
        self.limits = stream.limits
        self._stream = stream
        self._first = first
        self._chunks = Reply.of_chunks()
        self._broken = f"the server in the sandbox broke the connection to port {port}"

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except ConnectionError as err:
            raise PortClosedError(self._broken) from err

    async def receive(self) -> bytes:
        data = self._chunks.take()
        try:
            while not data and not self._chunks.complete:
                first, self._first = self._first, b""
                self._chunks.feed(first or await self._stream.receive())
                data = self._chunks.take()
        except (ProtocolError, ConnectionError) as err:
            raise PortClosedError(self._broken) from err
        return data

    async def end(self) -> None:
        await self._stream.end()

    def pending(self) -> bool:
        return self._stream.pending()

    def close(self) -> None:
        self._stream.close()


class AsyncConnection:
    """A TCP connection to a port of a sandbox.

    If the server breaks it, or is gone with its sandbox, that is a PortClosedError, and no end.
    """

    def __init__(self, transport: Transport, stream: Stream):
        self.stream = stream
        self._transport = transport

    async def send(self, data: Union[str, bytes]) -> None:
        """Send text or bytes."""
        with self._transport.talking(self.stream):
            await self.stream.send(exact(data))

    async def receive(self) -> bytes:
        """Return what has come, as soon as something has; nothing at the end."""
        with self._transport.talking(self.stream):
            return await self.stream.receive()

    async def receive_all(self) -> bytes:
        """Return all that comes until the other side has ended."""
        parts: List[bytes] = []
        while True:
            data = await self.receive()
            if not data:
                return b"".join(parts)
            parts.append(data)

    async def end(self) -> None:
        """Send nothing more; what comes can still be received."""
        with self._transport.talking(self.stream):
            await self.stream.end()

    async def close(self) -> None:
        """Close it."""
        self.stream.close()
