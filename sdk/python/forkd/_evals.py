"""Values of evaluations, in one sandbox or in many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, AsyncIterator, Dict, Iterable, List, Mapping, Optional, Protocol, Tuple, TypeVar, Union

from ._errors import (
    DeadlineError,
    EvalError,
    EvalTimeout,
    ForkdError,
    PartialEvalError,
    UnavailableError,
    error_of,
    unanswered,
)
from ._records import EvalAnswer, SandboxInfo
from ._transport import Transport


class HasId(Protocol):
    @property
    def id(self) -> str: ...


# A sandbox, a record of one, or the id of one.
S = TypeVar("S", bound=Union[str, SandboxInfo, HasId])


class Repr(str):
    """The text of a value that JSON cannot carry, as the runtime prints it.

    truncated tells that these are only the first characters of a longer text.
    """

    truncated: bool

    def __new__(cls, text: str, truncated: bool = False) -> "Repr":
        self = super().__new__(cls, text)
        self.truncated = truncated
        return self


@dataclass(frozen=True)
class EvalOutcome:
    """What became of an evaluation in one of many sandboxes.

    value and error are what Sandbox.eval would have returned or raised. answer is the
    whole record, with what the code wrote; it is None if there was no evaluation.
    """

    sandbox_id: str
    value: Any = None  # also of statements
    error: Optional[ForkdError] = None
    answer: Optional[EvalAnswer] = None

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def id_of(sandbox: Union[str, SandboxInfo, HasId]) -> str:
    """Return the id of a sandbox, which may be its id or a record already."""
    found: Any = sandbox.get("id") if isinstance(sandbox, dict) else getattr(sandbox, "id", sandbox)
    if not isinstance(found, str):
        raise TypeError(f"a sandbox must be a Sandbox, a record of one or an id, not {type(sandbox).__name__}")
    return found


def listed(sandboxes: Iterable[S]) -> List[S]:
    """Return sandboxes as a list; one, or its id, is none."""
    if isinstance(sandboxes, (str, dict)) or not isinstance(sandboxes, Iterable):
        raise TypeError(f"sandboxes must be a list, such as [{sandboxes!r}], not {type(sandboxes).__name__}")
    return list(sandboxes)


async def eval_all(
    transport: Transport, path: str, sandboxes: List[S], body: Dict[str, Any]
) -> AsyncIterator[Tuple[S, EvalOutcome]]:
    """Evaluate in sandboxes, and yield each with its outcome as it answers."""
    waiting = {id_of(sandbox): sandbox for sandbox in sandboxes}
    cut: Optional[ForkdError] = None
    try:
        async with transport.lines("POST", path, body) as answer:  # which begins with the first outcome
            try:
                async for line in answer.objects():
                    outcome = outcome_of(line)
                    if outcome.sandbox_id not in waiting:
                        raise ForkdError(f"an answer of sandbox {outcome.sandbox_id!r} has no place here")
                    yield waiting.pop(outcome.sandbox_id), outcome
            except UnavailableError as err:
                cut = err
            if waiting:
                raise PartialEvalError(list(waiting), len(sandboxes)) from cut
    except DeadlineError as err:
        missing = list(waiting)
        raise DeadlineError(f"{err}; {unanswered(missing, len(sandboxes))}", missing=missing) from err


def outcome_of(line: Mapping[str, Any]) -> EvalOutcome:
    """Return what one line of many says."""
    id, answer = line["sandbox_id"], line.get("result")
    if answer is None:
        return EvalOutcome(id, error=error_of(line["error"]))
    try:
        return EvalOutcome(id, value_of(answer), answer=answer)
    except EvalError as err:
        return EvalOutcome(id, error=err, answer=answer)


def value_of(answer: EvalAnswer) -> Any:
    """Return the value that was evaluated; an exception of the code is raised."""
    if answer["error"] is not None:
        raise eval_error(answer["error"])
    if "value" in answer:
        return answer["value"]
    return None if answer["result"] is None else Repr(answer["result"], answer.get("result_truncated", False))


def eval_error(record: Mapping[str, Any]) -> EvalError:
    """Return the exception of code that a record tells of."""
    kind, message, trace = record["type"], record["message"], record["traceback"]
    # The daemon tells of the limit in place of the interrupt, which the traceback ends with.
    # An exception of the code itself stands in its own traceback.
    limit = kind == "TimeoutError" and message and f"{kind}: {message}" not in trace
    return (EvalTimeout if limit else EvalError)(kind, message, trace)
