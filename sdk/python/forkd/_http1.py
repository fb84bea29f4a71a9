"""HTTP/1.1 without input or output: requests become bytes, bytes become answers.

Both the blocking and the asynchronous connections speak through it.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Optional

MAX_HEAD = 64 << 10
MAX_LINE = 1 << 10

_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: (.*))?$")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")


class ProtocolError(Exception):
    """The other side does not speak HTTP/1.1, or stopped in the middle of it."""


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request."""
    if _UNSAFE.search(target):
        raise ValueError(f"malformed request target {target!r}")
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        if not value.isprintable():
            raise ValueError(f"the header {name} must not hold control characters")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8")


def chunk(data: bytes) -> bytes:
    """Return a piece of a body whose length was not known; none is its end."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Reply:
    """The answer to one request, as its bytes come in."""

    def __init__(self, method: str):
        self.status = 0  # until the head is complete
        self.reason = ""
        self.headers: Dict[str, str] = {}  # names in lower case
        self.complete = False
        self._method = method
        self._raw = bytearray()  # not understood yet
        self._body = bytearray()  # not taken yet
        self._scanned = 0  # bytes of that without the end of a line
        self._parse = self._head
        self._left = 0  # bytes of the body, or of the piece
        self._keep = False

    @classmethod
    def of_chunks(cls) -> "Reply":
        """Return a reply of which only the chunks of its body come."""
        reply = cls("GET")
        reply.status, reply._parse = 101, reply._size
        return reply

    def feed(self, data: bytes) -> None:
        """Take what came; nothing means that the connection has ended."""
        if not data:
            self._end()
            return
        self._raw += data
        while not self.complete and self._parse():
            pass

    def take(self, size: Optional[int] = None) -> bytes:
        """Return up to size bytes of the body that are here, or all."""
        if size is None or size >= len(self._body):
            data, self._body = bytes(self._body), bytearray()
        else:
            data = bytes(self._body[:size])
            del self._body[:size]
        return data

    def take_line(self) -> bytes:
        """Return a line of the body if all of it is here, its end included."""
        end = self._body.find(b"\n", self._scanned)
        self._scanned = 0 if end >= 0 else len(self._body)
        return self.take(end + 1)

    def rest(self) -> bytes:
        """Return what came after the end of the answer."""
        data, self._raw = bytes(self._raw), bytearray()
        return data

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.complete and self._keep and not self._raw

    def _end(self) -> None:
        if self.complete:
            return
        if self.status and self._parse == self._until_end:
            self.complete = True
            return
        raise ProtocolError("the connection ended before the answer" if not self.status else "the answer was cut off")

    def _line(self, limit: int) -> Optional[bytes]:
        end = self._raw.find(b"\n", 0, limit)
        if end < 0:
            if len(self._raw) >= limit:
                raise ProtocolError("a line of the answer is too long")
            return None
        line = bytes(self._raw[:end]).rstrip(b"\r")
        del self._raw[: end + 1]
        return line

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            if len(self._raw) >= MAX_HEAD:
                raise ProtocolError("the head of the answer is too long")
            return False
        lines = bytes(self._raw[:end]).split(b"\r\n")
        del self._raw[: end + 4]
        match = _STATUS.match(lines[0])
        if match is None:
            raise ProtocolError("this is not HTTP/1.1")
        status = int(match[2])
        if 100 <= status < 200 and status != 101:
            return True  # another head follows
        self.reason = (match[3] or b"").decode("latin-1")
        for line in lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise ProtocolError("malformed header")
            self.headers[name.strip().lower()] = value.strip()
        self._keep = match[1] == b"1" and self.headers.get("connection", "").lower() != "close"
        self._begin_body(status)
        self.status = status
        return True

    def _begin_body(self, status: int) -> None:
        if status in (101, 204, 304) or self._method == "HEAD":
            self.complete = True
            self._keep = self._keep and status != 101
        elif self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._parse = self._size
        elif "content-length" in self.headers:
            length = self.headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise ProtocolError("malformed length of the answer")
            self._left = int(length)
            self.complete = self._left == 0
            self._parse = self._exact
        else:
            self._keep = False
            self._parse = self._until_end

    def _move(self) -> None:
        if len(self._raw) <= self._left and not self._body:
            self._left -= len(self._raw)
            self._body, self._raw = self._raw, self._body
            return
        piece = self._raw[: self._left]
        del self._raw[: self._left]
        self._left -= len(piece)
        self._body += piece

    def _exact(self) -> bool:
        self._move()
        self.complete = self._left == 0
        return False

    def _until_end(self) -> bool:
        self._left = len(self._raw)
        self._move()
        return False

    def _size(self) -> bool:
        line = self._line(MAX_LINE)
        if line is None:
            return False
        digits = line.split(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", digits):
            raise ProtocolError("malformed length of a piece of the answer")
        self._left = int(digits, 16)
        self._parse = self._piece if self._left else self._trailer
        return True

    def _piece(self) -> bool:
        self._move()
        if self._left:
            return False
        self._parse = self._piece_end
        return True

    def _piece_end(self) -> bool:
        if len(self._raw) < 2:
            return False
        if not self._raw.startswith(b"\r\n"):
            raise ProtocolError("malformed end of a piece of the answer")
        del self._raw[:2]
        self._parse = self._size
        return True

    def _trailer(self) -> bool:
        line = self._line(MAX_LINE)
        if line is None:
            return False
        self.complete = line == b""
        return True
