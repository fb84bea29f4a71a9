"""What can go wrong."""

from __future__ import annotations

from typing import Any, Dict, List, Optional


class ForkdError(Exception):
    """An error of forkd.

    code is stable ("not_found", "in_use", …; see the REST API), hint says what
    to do and may be empty, status is that of the HTTP answer, 0 without one,
    and dependents names what an "in_use" thing is used by.
    """

    def __init__(
        self,
        message: str,
        code: str = "internal",
        hint: str = "",
        status: int = 0,
        dependents: Optional[List[str]] = None,
    ):
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status
        self.dependents = dependents or []

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConnectError(ForkdError, ConnectionError):
    """No daemon can be reached."""

    def __init__(self, url: str, cause: BaseException):
        super().__init__(
            f"no forkd daemon answers at {url}: {cause}",
            code="unavailable",
            hint="start it with `forkd serve`",
        )


class EvalError(ForkdError):
    """Evaluated code has raised an exception.

    type and message are the exception's, traceback is its whole text. When the
    time limit ended the code, type is "TimeoutError" and the traceback that of
    the interrupt.
    """

    def __init__(self, type: str, message: str, traceback: str):
        super().__init__(f"{type}: {message}", code="eval_error")
        self.type = type
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        trace, last = self.traceback.rstrip(), f"{self.type}: {self.message}"
        if not trace:
            return last
        if self.type == "TimeoutError" and last not in trace:
            return f"{trace}\n{last}"
        return trace


class CommandTimeout(ForkdError, TimeoutError):
    """A command took longer than its timeout and was killed.

    result holds what it has printed until then.
    """

    def __init__(self, timeout: float, result: Any):
        super().__init__(f"the command took longer than {timeout:g} s and was killed", code="timeout")
        self.result = result


class PartialSpawnError(ForkdError):
    """Some children could not be started.

    sandboxes lists those that run; they go on running. errors has one entry for
    each of the others.
    """

    def __init__(self, sandboxes: List[Dict[str, Any]], errors: List[Dict[str, Any]]):
        first = errors[0]
        super().__init__(
            f"{len(errors)} of {len(errors) + len(sandboxes)} children could not be started: {first['error']}",
            code=first["code"],
            hint=first.get("hint", ""),
            status=207,
        )
        self.sandboxes = sandboxes
        self.errors = errors
