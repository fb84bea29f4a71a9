"""HTTP over TCP or a Unix socket, on the standard library.

Connections are kept and reused. One that the daemon has closed meanwhile is
noticed before it is used, so that no request has to be repeated: repeating
could run a command twice.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Union
from urllib.parse import urlsplit

from ._data import PIECE
from ._errors import ConnectError, ForkdError

DEFAULT_URL = "http://127.0.0.1:8889"
CONNECT_SECS = 10.0
# A stream is never silent for longer than a few seconds while the daemon lives.
STREAM_SECS = 60.0
MAX_IDLE = 16


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


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: str):
        super().__init__("localhost", timeout=CONNECT_SECS)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout)
        try:
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class Transport:
    """Sends requests to one daemon. Safe for use from several threads."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None):
        self.url = url or default_url()
        self._token = token if token is not None else os.environ.get("FORKD_TOKEN", "")
        parts = urlsplit(self.url)
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            self._make = lambda: _UnixConnection(parts.path)
        elif parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/"):
            kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
            host, port = parts.hostname, parts.port
            self._make = lambda: kind(host, port, timeout=CONNECT_SECS)
        else:
            raise ValueError(f"malformed URL of the daemon {self.url!r}: it must be http://host:port or unix:///path")
        self._idle: List[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drop idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Optional[Dict[str, str]] = None,
    ) -> Any:
        """Send JSON, return the JSON of the answer; None if it has no body."""
        with self.exchange(method, path, json_body(body), headers) as answer:
            data = answer.read()
        if not data:
            return None
        try:
            return json.loads(data)
        except ValueError as err:
            raise ForkdError(f"the answer is not JSON: {err}") from None

    def download(self, path: str, to: IO[bytes]) -> int:
        """Copy the body of an answer to a binary file and return its size."""
        size = 0
        with self.exchange("GET", path) as answer:
            while True:
                piece = answer.read(PIECE)
                if not piece:
                    return size
                to.write(piece)
                size += len(piece)

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        body: Union[bytes, Iterable[bytes], None] = None,
        headers: Optional[Dict[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> Iterator["Answer"]:
        """Send a request and yield its answer; errors are raised.

        If the block is left before the answer was read to its end, the connection
        is closed, which stops what the daemon was doing for it.
        """
        conn = self.connect()
        try:
            conn.sock.settimeout(timeout)
            answer = self._ask(conn, method, path, body, headers or {})
            yield answer
        except BaseException:
            conn.close()
            raise
        self._give_back(conn, answer.is_complete())

    def _ask(
        self,
        conn: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Union[bytes, Iterable[bytes], None],
        headers: Dict[str, str],
    ) -> "Answer":
        headers = {**self.headers(), **headers}
        chunked = body is not None and not isinstance(body, bytes)
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        with self.talking():
            try:
                conn.request(method, path, body, headers, encode_chunked=chunked)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was refused before all of it was read; the answer says why
            return self.answer(conn)

    def answer(self, conn: http.client.HTTPConnection) -> "Answer":
        """Wait for the answer to a request; one with an error is raised."""
        with self.talking():
            resp = conn.getresponse()
            if resp.status >= 400:
                raise error_of(resp)
        return Answer(resp, self)

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Turn failures of the connection into ForkdError."""
        try:
            yield
        except ForkdError:
            raise
        except (http.client.HTTPException, OSError) as err:
            raise ForkdError(
                f"talking to the daemon at {self.url}: {err or type(err).__name__}",
                code="unavailable",
            ) from err

    def headers(self) -> Dict[str, str]:
        """Return the headers of every request."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, a kept one if possible."""
        while True:
            with self._lock:
                conn = self._idle.pop() if self._idle else None
            if conn is None:
                break
            if _alive(conn):
                return conn
            conn.close()
        conn = self._make()
        try:
            conn.connect()
        except OSError as err:
            raise ConnectError(self.url, err) from err
        return conn

    def _give_back(self, conn: http.client.HTTPConnection, reusable: bool) -> None:
        if reusable and conn.sock is not None:
            with self._lock:
                if len(self._idle) < MAX_IDLE:
                    self._idle.append(conn)
                    return
        conn.close()


class Answer:
    """The body of a good answer."""

    def __init__(self, resp: http.client.HTTPResponse, transport: Transport):
        self._resp = resp
        self._transport = transport

    def read(self, size: Optional[int] = None) -> bytes:
        """Read up to size bytes, or all."""
        with self._transport.talking():
            return self._resp.read(size)

    def events(self) -> Iterator[Dict[str, Any]]:
        """Yield JSON objects, one a line; an empty line only says that more may come."""
        while True:
            with self._transport.talking():
                line = self._resp.readline()
            if not line.endswith(b"\n"):
                return  # the end, or a line that was cut short
            if line != b"\n":
                yield json.loads(line)

    def is_complete(self) -> bool:
        """Tell whether the connection can be used again."""
        return self._resp.isclosed() and not self._resp.will_close


def _alive(conn: http.client.HTTPConnection) -> bool:
    """Tell whether nothing has come on an idle connection, not even its end."""
    if conn.sock is None:
        return False
    poll = select.poll()
    poll.register(conn.sock, select.POLLIN)
    return not poll.poll(0)


def json_body(body: Any) -> Optional[bytes]:
    """Encode a body; None stays None."""
    return None if body is None else json.dumps(body, allow_nan=False).encode()


def error_of(resp: http.client.HTTPResponse) -> ForkdError:
    """Read the error in an answer."""
    data = resp.read(1 << 20)
    try:
        body = json.loads(data)
        code, hint = body["code"], body.get("hint", "")
        if code == "unauthorized":
            hint = "set FORKD_TOKEN to the token of the daemon"  # which tells strangers nothing
        return ForkdError(
            body["error"],
            code,
            hint,
            resp.status,
            body.get("dependents"),
        )
    except (ValueError, KeyError, TypeError):
        return ForkdError(
            f"the answer {resp.status} {resp.reason} is not one of forkd's",
            hint="check that FORKD_URL names a forkd daemon",
            status=resp.status,
        )
