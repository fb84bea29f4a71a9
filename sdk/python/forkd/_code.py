"""Code that runs in the interpreters of a sandbox, asynchronously."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from ._controller import box_route, given
from ._errors import EvalError
from ._evals import eval_error, value_of
from ._output import OnOutput, notify
from ._records import CodeContext
from ._transport import Answer, Transport, cut_off

OnResult = Optional[Callable[["Result"], Any]]


@dataclass(frozen=True)
class Result:
    """A value in every form that it can be shown in.

    data has them by MIME type: text as text, images and PDF as base64, JSON as it
    is. main tells that it is the value of the last expression, and was not
    displayed. chart is a figure as structured data.
    """

    main: bool
    data: Dict[str, Any]
    chart: Optional[Dict[str, Any]] = None

    @property
    def text(self) -> Optional[str]:
        return self.data.get("text/plain")

    @property
    def html(self) -> Optional[str]:
        return self.data.get("text/html")

    @property
    def markdown(self) -> Optional[str]:
        return self.data.get("text/markdown")

    @property
    def latex(self) -> Optional[str]:
        return self.data.get("text/latex")

    @property
    def svg(self) -> Optional[str]:
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> Optional[str]:
        return self.data.get("image/png")

    @property
    def jpeg(self) -> Optional[str]:
        return self.data.get("image/jpeg")

    @property
    def pdf(self) -> Optional[str]:
        return self.data.get("application/pdf")

    @property
    def json(self) -> Any:
        return self.data.get("application/json")

    @property
    def javascript(self) -> Optional[str]:
        return self.data.get("application/javascript")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, Any]:
        """Show itself in a notebook."""
        return self.data


@dataclass
class Execution:
    """What code has brought forth, and how it ended."""

    stdout: str = ""
    stderr: str = ""
    results: List[Result] = field(default_factory=list[Result])
    error: Optional[EvalError] = None  # the exception that it raised
    count: int = 0  # runs of its context so far
    context_lost: bool = False  # the interpreter died, and was started again without its state

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression, as text."""
        return next((result.text for result in self.results if result.main), None)

    def check(self) -> "Execution":
        """Raise the exception that the code raised, if there is one; return this."""
        if self.error is not None:
            raise self.error
        return self


class AsyncContexts:
    """The interpreters of a sandbox that keep state between runs."""

    def __init__(self, transport: Transport, id: str):
        self._transport = transport
        self._id = id

    async def create(
        self,
        language: Optional[str] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
    ) -> CodeContext:
        """Start an interpreter for "python", the default, "javascript" or "bash"."""
        return await self._transport.call(
            "POST", box_route(self._id, "contexts"), given(language=language, cwd=cwd, user=user)
        )

    async def list(self) -> List[CodeContext]:
        """List the contexts; "default" is that of the warm runtime."""
        return await self._transport.call("GET", box_route(self._id, "contexts"))

    async def remove(self, id: str) -> None:
        """End a context. The default one cannot be ended."""
        await self._transport.call("DELETE", box_route(self._id, "contexts", id))

    async def restart(self, id: str) -> None:
        """Start the interpreter of a context anew, without its state."""
        await self._transport.call("POST", box_route(self._id, "contexts", id, "restart"))


async def evaluate(transport: Transport, id: str, code: str, timeout: Optional[float]) -> Any:
    """Evaluate code in the warm runtime and return its value."""
    return value_of(await transport.call("POST", box_route(id, "eval"), given(code=code, timeout_secs=timeout)))


async def run_code(
    transport: Transport,
    id: str,
    request: Mapping[str, Any],
    on_stdout: OnOutput,
    on_stderr: OnOutput,
    on_result: OnResult,
) -> Execution:
    """Run code in a context."""
    async with transport.lines("POST", box_route(id, "run"), request) as answer:
        execution = await _follow(answer, on_stdout, on_stderr, on_result)
        await answer.read()
    return execution


async def _follow(answer: Answer, on_stdout: OnOutput, on_stderr: OnOutput, on_result: OnResult) -> Execution:
    out: List[str] = []
    err: List[str] = []
    results: List[Result] = []
    async for event in answer.events():
        if "stdout" in event:
            out.append(event["stdout"])
            await notify(on_stdout, event["stdout"])
        elif "stderr" in event:
            err.append(event["stderr"])
            await notify(on_stderr, event["stderr"])
        elif "result" in event:
            told = event["result"]
            results.append(Result(told["main"], told["data"], told.get("chart")))
            await notify(on_result, results[-1])
        elif "end" in event:
            end = event["end"]
            error = None if end["error"] is None else eval_error(end["error"])
            return Execution("".join(out), "".join(err), results, error, end["count"], end["context_lost"])
    raise cut_off()
