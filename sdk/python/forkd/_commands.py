"""The commands of a sandbox, asynchronously."""

from __future__ import annotations

import base64
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

from ._controller import argv, box_route, given, known
from ._data import AsyncData, check, cut, pieces
from ._errors import ForkdError, NotFoundError
from ._http1 import chunk
from ._io import Job, Stream
from ._opening import Opening
from ._output import CommandResult, OnOutput, Output
from ._records import CommandOptions
from ._transport import BYTES, LINES, STREAM_SECS, Answer, Transport, cut_off, encode

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class PtySize:
    """The size of a terminal, in characters."""

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True)
class ProcessInfo:
    """A process that start has started. One that has ended is remembered for a while."""

    pid: int
    tag: str
    args: List[str]
    env: Dict[str, str]
    cwd: str
    tty: bool
    started_at: str
    exit_code: Optional[int]  # None while it runs


class AsyncCommands:
    """Runs commands in a sandbox."""

    def __init__(self, transport: Transport, id: str):
        self._transport = transport
        self._id = id

    async def run(
        self,
        cmd: Union[str, Sequence[str]],
        *,
        stdin: Optional[AsyncData] = None,
        on_stdout: OnOutput = None,
        on_stderr: OnOutput = None,
        **options: "Unpack[CommandOptions]",
    ) -> CommandResult:
        """Run a command to its end.

        A string is given to /bin/sh, a list is run as it is. stdin is text, bytes,
        a binary file or pieces of bytes. on_stdout and on_stderr are called with
        text as it comes. A timeout raises CommandTimeout; any other end is in the
        result, as is the output, up to 64 MiB per stream. If this call is
        interrupted or cancelled, the command is killed.
        """
        request = _request(cmd, options)
        output = Output(on_stdout, on_stderr)
        if stdin is None:
            lines = {**LINES, "Content-Type": "application/x-ndjson"}
            path = box_route(self._id, "exec", "stream")
            async with self._transport.exchange("POST", path, encode(request) + b"\n", lines, STREAM_SECS) as answer:
                end = await output.follow(answer)
                await answer.read()
        else:
            check(stdin)
            end = await self._run_with_input(request, stdin, output)
        return output.result(end, options.get("timeout"))

    async def _run_with_input(self, request: Dict[str, Any], stdin: AsyncData, output: Output) -> Mapping[str, Any]:
        """Run a command whose input is sent at the side, while its output comes."""
        lines = {**LINES, "Content-Type": "application/x-ndjson"}
        stream = await self._transport.duplex("POST", box_route(self._id, "exec", "stream"), lines)
        sender = _Sender(stream, encode(request) + b"\n", stdin)
        job = self._transport.io.spawn(sender.run())
        try:
            answer = Answer(stream, "POST", self._transport)
            await answer.begin()
            return await output.follow(answer)
        except ForkdError:
            if sender.error is not None:
                raise sender.error from None
            raise
        finally:
            sender.stopped = True
            stream.close()
            job.cancel()

    def start(
        self,
        cmd: Union[str, Sequence[str]],
        *,
        tag: Optional[str] = None,
        stdin: bool = False,
        pty: Union[PtySize, bool] = False,
        detach: bool = False,
        on_stdout: OnOutput = None,
        on_stderr: OnOutput = None,
        **options: "Unpack[CommandOptions]",
    ) -> "Opening[AsyncProcess]":
        """Start a process that lives on its own, whatever becomes of this program.

        Its output is collected and given to the callbacks in the background, unless
        detach is set: then it is dropped as long as nobody is attached. With stdin
        it can be written to; without, it reads the end of its input at once. pty
        gives it a terminal, which it can be written to, and all its output is stdout
        then. tag is to find it by.
        """
        request = {**_request(cmd, options), **given(tag=tag, stdin=stdin or None, detach=detach or None)}
        if pty:
            size = PtySize() if isinstance(pty, bool) else pty
            request["tty"] = {"cols": size.cols, "rows": size.rows}
        output = Output(on_stdout, on_stderr)
        return Opening(self._start(request, output), AsyncProcess.disconnect)

    async def _start(self, request: Dict[str, Any], output: Output) -> "AsyncProcess":
        path = box_route(self._id, "processes")
        if "detach" in request:
            info = await self._transport.call("POST", path, request)
            return AsyncProcess(self._transport, self._id, info, output, None)
        answer = await self._transport.begin("POST", path, encode(request), LINES, STREAM_SECS)
        return await self._attached(answer, output)

    def attach(
        self,
        process: Union[int, str],
        *,
        on_stdout: OnOutput = None,
        on_stderr: OnOutput = None,
    ) -> "Opening[AsyncProcess]":
        """Listen to a process from now on, by its PID or its tag.

        Of several with a tag it is the youngest. One that has ended within the last
        minutes is found too.
        """
        output = Output(on_stdout, on_stderr)
        return Opening(self._attach(_ref(process), output), AsyncProcess.disconnect)

    async def _attach(self, ref: str, output: Output) -> "AsyncProcess":
        path = box_route(self._id, "processes", ref, "attach")
        return await self._attached(await self._transport.begin("GET", path, None, LINES, STREAM_SECS), output)

    async def _attached(self, answer: Answer, output: Output) -> "AsyncProcess":
        try:
            async for event in answer.events():
                answer.stream.limits.until = None  # the limit of a call was for its beginning
                return AsyncProcess(self._transport, self._id, event["start"], output, answer)
            raise cut_off()
        except BaseException:
            answer.stream.close()
            raise

    async def list(self) -> List[ProcessInfo]:
        """List the processes that start has started, running ones first."""
        found = await self._transport.call("GET", box_route(self._id, "processes"))
        return [_process_info(each) for each in found]

    async def kill(self, process: Union[int, str]) -> bool:
        """Kill a process and all that it has started, by its PID or its tag.

        False if there is none.
        """
        return await _signal(self._transport, self._id, _ref(process), signal.SIGKILL)


class AsyncProcess:
    """A process that was started or attached to."""

    def __init__(
        self,
        transport: Transport,
        id: str,
        info: Mapping[str, Any],
        output: Output,
        answer: Optional[Answer],
    ):
        self.info = _process_info(info)
        self._transport = transport
        self._id = id
        self._output = output
        self._answer: Optional[Answer] = None
        self._job: Optional[Job] = None
        self._end: Optional[Mapping[str, Any]] = info.get("exit")
        self._error: Optional[BaseException] = None
        if answer is not None:
            self._follow(answer)

    def __repr__(self) -> str:
        return f"<process {self.pid}>"

    @property
    def pid(self) -> int:
        return self.info.pid

    @property
    def stdout(self) -> str:
        """What has come so far."""
        return self._output.out.text()

    @property
    def stderr(self) -> str:
        """What has come so far."""
        return self._output.err.text()

    def _follow(self, answer: Answer) -> None:
        self._answer, self._end, self._error = answer, None, None
        self._job = self._transport.io.spawn(self._listen(answer))

    async def _listen(self, answer: Answer) -> None:
        try:
            self._end = await self._output.follow(answer)
            await answer.read()
            self._transport.end(answer)
        except BaseException as err:
            self._error = err
            answer.stream.close()

    async def wait(self) -> CommandResult:
        """Wait for the end and return it, with the output since this handle is there.

        Who waits can be interrupted or cancelled; the process goes on. A timeout of
        the process raises CommandTimeout. After disconnect this attaches again.
        """
        if self._job is None and self._end is None:
            path = box_route(self._id, "processes", str(self.pid), "attach")
            answer = await self._transport.begin("GET", path, None, LINES, STREAM_SECS)
            answer.stream.limits.until = None
            self._follow(answer)
        if self._job is not None:
            await self._job.wait()
        if self._error is not None:
            raise self._error
        assert self._end is not None
        return self._output.result(self._end, None)

    async def disconnect(self) -> None:
        """Stop listening; the process goes on."""
        job, self._job = self._job, None
        if self._answer is not None and job is not None and not job.done():
            self._answer.stream.close()
            await job.wait()
            self._error = None

    async def send_stdin(self, data: Union[str, bytes]) -> None:
        """Write to its standard input or terminal; returns when that has taken all."""
        path = box_route(self._id, "processes", str(self.pid), "input")
        for piece in cut(data):
            async with self._transport.exchange("POST", path, piece, BYTES) as answer:
                await answer.read()

    async def close_stdin(self) -> None:
        """Let it read the end of its input."""
        await self._transport.call("DELETE", box_route(self._id, "processes", str(self.pid), "input"))

    async def send_signal(self, number: Union[int, str]) -> bool:
        """Send a signal, by number or name, to it and all that it has started.

        False if it has ended.
        """
        return await _signal(self._transport, self._id, str(self.pid), number)

    async def kill(self) -> bool:
        """Kill it, and all that it has started. False if it has ended."""
        return await self.send_signal(signal.SIGKILL)

    async def resize(self, cols: int, rows: int) -> None:
        """Change the size of its terminal."""
        path = box_route(self._id, "processes", str(self.pid), "resize")
        await self._transport.call("POST", path, {"cols": cols, "rows": rows})


def _request(cmd: Union[str, Sequence[str]], options: CommandOptions) -> Dict[str, Any]:
    fields = known(CommandOptions, options)
    timeout, env = fields.pop("timeout", None), fields.pop("env", None)
    return given(args=argv(cmd), timeout_secs=timeout, env=None if env is None else dict(env), **fields)


def _ref(process: Union[int, str]) -> str:
    return str(process) if isinstance(process, int) else "@" + process


async def _signal(transport: Transport, id: str, ref: str, number: Union[int, str]) -> bool:
    name = number if isinstance(number, str) else str(int(number))
    try:
        await transport.call("POST", box_route(id, "processes", ref, "signal"), {"signal": name})
    except NotFoundError:
        return False
    return True


def _process_info(record: Mapping[str, Any]) -> ProcessInfo:
    end = record["exit"]
    return ProcessInfo(
        pid=record["pid"],
        tag=record.get("tag", ""),
        args=record["args"],
        env=record["env"],
        cwd=record["cwd"],
        tty=record["tty"],
        started_at=record["started_at"],
        exit_code=None if end is None else end["exit_code"],
    )


class _Sender:
    """Sends a command and its standard input as the chunks of a request."""

    def __init__(self, stream: Stream, first: bytes, stdin: AsyncData):
        self.error: Optional[BaseException] = None  # that the input raised
        self.stopped = False
        self._stream = stream
        self._first = first
        self._stdin = stdin

    async def run(self) -> None:
        source = pieces(self._stdin)
        try:
            await self._stream.send(chunk(self._first))
            while not self.stopped:
                try:
                    piece = await source.__anext__()
                except StopAsyncIteration:
                    await self._stream.send(chunk(b""))
                    return
                except BaseException as err:
                    self.error = err
                    # Without its end the body is broken, and the command is killed.
                    self._stream.close()
                    return
                await self._stream.send(chunk(b'{"stdin_b64":"%s"}\n' % base64.b64encode(piece)))
        except OSError:
            pass  # the daemon no longer listens; its answer says why
