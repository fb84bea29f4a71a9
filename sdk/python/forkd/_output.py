"""What commands write."""

from __future__ import annotations

import base64
import codecs
import inspect
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from ._errors import CommandTimeout
from ._transport import Answer, cut_off

OUTPUT_LIMIT = 64 << 20
OnOutput = Optional[Callable[[str], Any]]


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. Output that is not UTF-8 has U+FFFD in the texts."""

    stdout: str
    stderr: str
    exit_code: int  # 128+n for signal n, 127 not found, 126 not executable
    signal: Optional[str]
    timed_out: bool
    oom_killed: bool
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_bytes: bytes
    stderr_bytes: bytes


class Output:
    """What a command writes."""

    def __init__(self, on_stdout: OnOutput, on_stderr: OnOutput):
        self.out, self.err = _Text(on_stdout), _Text(on_stderr)

    async def follow(self, answer: Answer) -> Mapping[str, Any]:
        """Take events until the command has ended."""
        async for event in answer.events():
            if "exit" in event:
                await self.out.end()
                await self.err.end()
                return event["exit"]
            for name, text in (("stdout", self.out), ("stderr", self.err), ("terminal", self.out)):
                if name + "_b64" in event:
                    await text.add(base64.b64decode(event[name + "_b64"]))
                elif name in event:
                    await text.add(event[name].encode())
        raise cut_off()

    def result(self, end: Mapping[str, Any], timeout: Optional[float]) -> CommandResult:
        """Return how it ended; that its time was over is raised."""
        result = CommandResult(
            stdout=self.out.text(),
            stderr=self.err.text(),
            exit_code=end["exit_code"],
            signal=end["signal"],
            timed_out=end["timed_out"],
            oom_killed=end.get("oom_killed", False),
            stdout_truncated=end.get("stdout_truncated", False) or self.out.cut,
            stderr_truncated=end.get("stderr_truncated", False) or self.err.cut,
            stdout_bytes=bytes(self.out.data),
            stderr_bytes=bytes(self.err.data),
        )
        if result.timed_out:
            raise CommandTimeout(timeout, result)
        return result


class _Text:
    """Collects one stream and passes it on as text."""

    def __init__(self, callback: OnOutput):
        self.data = bytearray()
        self.cut = False
        self._callback = callback
        # A character may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def add(self, data: bytes) -> None:
        room = OUTPUT_LIMIT - len(self.data)
        self.data += data[:room]
        self.cut = self.cut or len(data) > room
        await notify(self._callback, self._decoder.decode(data))

    async def end(self) -> None:
        await notify(self._callback, self._decoder.decode(b"", True))

    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


async def notify(callback: Optional[Callable[[Any], Any]], value: Any) -> None:
    """Give a callback, which may be a coroutine function, a value that is not empty."""
    if callback is not None and value:
        result = callback(value)
        if inspect.isawaitable(result):
            await result
