"""The commands of a sandbox."""

from __future__ import annotations

import base64
import codecs
import http.client
import json
import socket
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Union

from ._controller import Controller, box_path, event_error, without_none
from ._data import Data, pieces_of
from ._errors import CommandTimeout, ForkdError
from ._transport import STREAM_SECS, Answer

OUTPUT_LIMIT = 64 << 20


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. Output that is not UTF-8 has U+FFFD in the texts."""

    stdout: str
    stderr: str
    exit_code: int  # 128+n for signal n, 127 not found, 126 not executable
    signal: Optional[str]
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    duration_secs: float
    stdout_bytes: bytes
    stderr_bytes: bytes


class Commands:
    """Runs commands in a sandbox."""

    def __init__(self, controller: Controller, id: str):
        self._controller = controller
        self._id = id

    def run(
        self,
        cmd: Union[str, Sequence[str]],
        timeout: Optional[float] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[Data] = None,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
    ) -> CommandResult:
        """Run a command to its end.

        A string is given to /bin/sh, a list is run as it is. stdin is text, bytes,
        a binary file or pieces of bytes. on_stdout and on_stderr are called with
        text as it comes. A timeout raises CommandTimeout; any other end is in the
        result, as is the output, up to 64 MiB per stream. If this call is
        interrupted, the command is killed.
        """
        args = ["/bin/sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        request = without_none(
            args=args,
            timeout_secs=timeout,
            env=None if env is None else dict(env),
            cwd=cwd,
            user=user,
        )
        out, err = _Output(on_stdout), _Output(on_stderr)
        end = self._stream(request, stdin, out, err)
        result = CommandResult(
            stdout=out.text(),
            stderr=err.text(),
            exit_code=end["exit_code"],
            signal=end["signal"],
            timed_out=end["timed_out"],
            stdout_truncated=end["stdout_truncated"] or out.cut,
            stderr_truncated=end["stderr_truncated"] or err.cut,
            duration_secs=end["duration_ms"] / 1000,
            stdout_bytes=bytes(out.data),
            stderr_bytes=bytes(err.data),
        )
        if result.timed_out:
            raise CommandTimeout(timeout or 0.0, result)
        return result

    def _stream(self, request: Dict[str, Any], stdin: Optional[Data], out: "_Output", err: "_Output") -> Dict[str, Any]:
        transport = self._controller.transport
        path = box_path(self._id, "/exec/stream")
        headers = {"Content-Type": "application/x-ndjson"}
        first = json.dumps(request).encode() + b"\n"
        if stdin is None:
            with transport.exchange("POST", path, first, headers, STREAM_SECS) as answer:
                return _follow(answer, out, err)
        # Input flows while the answer does, so it is sent from another thread. It
        # may have to wait for the command to read it, so there is no time limit.
        conn = transport.connect()
        sender = _Sender(conn, first, stdin)
        try:
            conn.sock.settimeout(None)
            with transport.talking():
                conn.putrequest("POST", path)
                for name, value in {**transport.headers(), **headers, "Transfer-Encoding": "chunked"}.items():
                    conn.putheader(name, value)
                conn.endheaders()
            sender.start()
            return _follow(transport.answer(conn), out, err)
        except ForkdError:
            if sender.error is not None:
                raise sender.error from None
            raise
        finally:
            sender.stopped = True
            conn.close()


def _follow(answer: Answer, out: "_Output", err: "_Output") -> Dict[str, Any]:
    """Read events until the command has ended."""
    for event in answer.events():
        if "exit" in event:
            out.end()
            err.end()
            answer.read()
            return event["exit"]
        if "error" in event:
            raise event_error(event["error"])
        for name, output in (("stdout", out), ("stderr", err)):
            if name + "_b64" in event:
                output.add(base64.b64decode(event[name + "_b64"]))
            elif name in event:
                output.add(event[name].encode())
    raise ForkdError("running the command: the daemon stopped answering half way", code="unavailable")


class _Output:
    """Collects one output stream and passes it on as text."""

    def __init__(self, callback: Optional[Callable[[str], Any]]):
        self.data = bytearray()
        self.cut = False
        self._callback = callback
        # A character may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        room = OUTPUT_LIMIT - len(self.data)
        self.data += data[:room]
        self.cut = self.cut or len(data) > room
        self._pass_on(self._decoder.decode(data))

    def end(self) -> None:
        self._pass_on(self._decoder.decode(b"", True))

    def _pass_on(self, text: str) -> None:
        if self._callback is not None and text:
            self._callback(text)

    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class _Sender(threading.Thread):
    """Sends a command and its standard input as the chunks of a request."""

    def __init__(self, conn: http.client.HTTPConnection, first: bytes, stdin: Data):
        super().__init__(name="forkd-stdin", daemon=True)
        self.error: Optional[BaseException] = None  # that the input raised
        self.stopped = False
        self._sock: socket.socket = conn.sock
        self._first = first
        self._stdin = stdin

    def run(self) -> None:
        try:
            self._chunk(self._first)
            pieces = pieces_of(self._stdin)
            while not self.stopped:
                piece = self._next(pieces)
                if piece is None:
                    break
                self._chunk(b'{"stdin_b64":"%s"}\n' % base64.b64encode(piece))
            if self.error is None and not self.stopped:
                self._sock.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # the daemon no longer listens; its answer says why

    def _next(self, pieces: Iterator[bytes]) -> Optional[bytes]:
        try:
            return next(pieces, None)
        except BaseException as err:
            self.error = err
            # Without its end the body is broken, and the command is killed.
            self._sock.shutdown(socket.SHUT_RDWR)
            return None

    def _chunk(self, data: bytes) -> None:
        self._sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))
