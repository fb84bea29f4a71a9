"""What can go wrong."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Type

from ._records import Shortage


class ForkdError(Exception):
    """An error of forkd. Each code has a class of its own below.

    code is stable ("not_found", "in_use", …; see the REST API), hint says what
    to do and may be empty, status is that of the HTTP answer, 0 without one,
    dependents names what an "in_use" thing is used by, and shortage what the host
    lacked for something that it did not begin ("capacity_exceeded", "no_space").
    """

    code = "internal"

    def __init__(
        self,
        message: str,
        code: str = "",
        hint: str = "",
        status: int = 0,
        dependents: Optional[Sequence[str]] = None,
        shortage: Optional[Shortage] = None,
    ):
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.hint = hint
        self.status = status
        self.dependents: List[str] = list(dependents or ())
        self.shortage = shortage

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidArgumentError(ForkdError, ValueError):
    """The request can never work; the message names the field."""

    code = "invalid_argument"


class UnauthorizedError(ForkdError):
    """No token or a wrong one."""

    code = "unauthorized"


class ForbiddenError(ForkdError):
    """The request comes from a place that may not ask."""

    code = "forbidden"


class NotFoundError(ForkdError, LookupError):
    """There is no such tag, sandbox, process, context or file."""

    code = "not_found"


class AlreadyExistsError(ForkdError):
    """The name is taken."""

    code = "already_exists"


class InUseError(ForkdError):
    """Something still depends on it; dependents names it."""

    code = "in_use"


class FailedPreconditionError(ForkdError):
    """The request is sound, but what it names does not allow it."""

    code = "failed_precondition"


class PausedError(FailedPreconditionError):
    """The sandbox is paused, and was not made to resume by itself."""

    code = "paused"


class PortClosedError(ForkdError, ConnectionRefusedError):
    """Nothing listens on the port in the sandbox, or what did has broken the connection."""

    code = "port_closed"


class NoRuntimeError(ForkdError):
    """The snapshot has no interpreter for that."""

    code = "no_runtime"


class RuntimeLostError(ForkdError):
    """The interpreter died and was started again; its state is gone."""

    code = "runtime_lost"


class SandboxDeadError(ForkdError):
    """The guest has ended; the message says why."""

    code = "sandbox_dead"


class TooLargeError(ForkdError):
    """The body is over the limit of the operation."""

    code = "too_large"


class NotBootableError(ForkdError):
    """The snapshot or pack is damaged or foreign."""

    code = "not_bootable"


class CommandFailedError(ForkdError):
    """A command or evaluation that had to succeed has not."""

    code = "command_failed"


class UnsupportedError(ForkdError, NotImplementedError):
    """This engine or build cannot do it."""

    code = "unsupported"


class UnavailableError(ForkdError):
    """It did not work this time; try again later."""

    code = "unavailable"


class CapacityExceededError(ForkdError):
    """A limit of the host or the daemon is reached."""

    code = "capacity_exceeded"


class DeadlineError(ForkdError, TimeoutError):
    """A time limit passed.

    missing lists the ids of the sandboxes that have not answered an evaluation in many;
    it is empty for all else.
    """

    code = "timeout"

    def __init__(self, message: str, *more: Any, missing: Sequence[str] = ()):
        super().__init__(message, *more)
        self.missing = list(missing)


class NoSpaceError(ForkdError):
    """The disk is full."""

    code = "no_space"


class ConnectError(UnavailableError, ConnectionError):
    """No daemon can be reached."""

    def __init__(self, url: str, cause: BaseException):
        super().__init__(
            f"no forkd daemon answers at {url}: {cause or type(cause).__name__}",
            hint="start it with `forkd serve`, or name it with FORKD_URL",
        )


def unanswered(missing: Sequence[str], total: int) -> str:
    """Say which of the sandboxes have not answered."""
    names = ", ".join(missing[:10]) + (", …" if len(missing) > 10 else "")
    return f"{len(missing)} of {total} sandboxes have not answered: {names}"


class PartialEvalError(UnavailableError):
    """The daemon stopped answering before all sandboxes had.

    missing lists the ids of those that have not answered.
    """

    def __init__(self, missing: Sequence[str], total: int):
        super().__init__(f"the daemon stopped answering half way: {unanswered(missing, total)}")
        self.missing = list(missing)


class EvalError(ForkdError):
    """Code has raised an exception.

    type and message are the exception's, traceback is its whole text.
    """

    code = "eval_error"

    def __init__(self, type: str, message: str, traceback: str):
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return self.traceback.rstrip() or f"{self.type}: {self.message}"


class EvalTimeout(EvalError, TimeoutError):
    """The time limit of an evaluation or a run ended it; state is kept.

    type is "TimeoutError", message names the limit, and traceback shows where the
    code was interrupted. A TimeoutError that the code itself raises is a plain
    EvalError.
    """

    def __str__(self) -> str:
        return f"{self.traceback.rstrip()}\n{self.type}: {self.message}".lstrip()


class CommandTimeout(DeadlineError):
    """A command took longer than its timeout and was killed.

    result holds what it has printed until then, if somebody listened.
    """

    def __init__(self, timeout: Optional[float], result: Any):
        limit = "its time limit" if timeout is None else f"{timeout:g} s"
        super().__init__(f"the command took longer than {limit} and was killed")
        self.result = result


class PartialSpawnError(ForkdError):
    """Some children could not be started.

    sandboxes lists those that run; they go on running. errors has one entry for
    each of the others.
    """

    def __init__(self, sandboxes: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]):
        first = errors[0]
        super().__init__(
            f"{len(errors)} of {len(errors) + len(sandboxes)} children could not be started: {first['error']}",
            code=first["code"],
            hint=first.get("hint", ""),
            status=207,
        )
        self.sandboxes = list(sandboxes)
        self.errors = list(errors)


_BY_CODE: Dict[str, Type[ForkdError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        AlreadyExistsError,
        InUseError,
        FailedPreconditionError,
        PausedError,
        PortClosedError,
        NoRuntimeError,
        RuntimeLostError,
        SandboxDeadError,
        TooLargeError,
        NotBootableError,
        CommandFailedError,
        UnsupportedError,
        UnavailableError,
        CapacityExceededError,
        DeadlineError,
        NoSpaceError,
    )
}


def error_of(body: Mapping[str, Any], status: int = 0) -> ForkdError:
    """Return the error that an answer or a stream tells of.

    It fails like a bad dictionary does if body is not one of forkd's errors.
    """
    code, hint = body["code"], body.get("hint", "")
    if code == "unauthorized":
        hint = "set FORKD_TOKEN to the token of the daemon"  # which tells strangers nothing
    kind = _BY_CODE.get(code, ForkdError)
    return kind(body["error"], code, hint, status, body.get("dependents"), body.get("shortage"))
