"""One child."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

from ._commands import Commands
from ._controller import Controller
from ._errors import EvalError, ForkdError, PartialSpawnError
from ._files import Files

DEFAULT_TAG = "pyagent"


class Repr(str):
    """The text of a value that JSON cannot carry, as the runtime prints it."""


@dataclass(frozen=True)
class Evaluation:
    """The outcome of evaluated code that raised nothing."""

    value: Any  # a Repr if JSON cannot carry it, None for statements
    repr: Optional[str]  # as the runtime prints it, None for statements
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Branch:
    """A snapshot of a running sandbox. Sandbox(branch.tag) forks from it."""

    tag: str
    branched_from: str  # id of the sandbox
    mode: str  # live, diff or full
    status: str  # writing, ready or failed
    pause_ms: float  # for which the processes of the sandbox stood still

    def __str__(self) -> str:
        return self.tag


class Sandbox:
    """A sandbox forked from a snapshot.

    >>> with Sandbox(tag="pyagent") as box:
    ...     box.eval("1 + 1")
    2

    Leaving the with block ends the sandbox, whatever happened in it.
    """

    def __init__(
        self,
        tag: Optional[str] = None,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        timeout: Optional[float] = None,
        memory_limit_mib: Optional[int] = None,
        prewarm: bool = False,
        controller: Optional[Controller] = None,
    ):
        """Fork a sandbox.

        tag is FORKD_TAG or "pyagent" by default. timeout ends the sandbox after
        that many seconds. A controller, if given, is used and not closed.
        """
        self._bind(controller, url, token)
        try:
            info = self.controller.spawn_sandboxes(
                tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG,
                timeout_secs=timeout,
                memory_limit_mib=memory_limit_mib,
                prewarm=prewarm,
            )[0]
        except BaseException:
            self._close()
            raise
        self._name(info["id"])

    @classmethod
    def connect(
        cls,
        id: str,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        controller: Optional[Controller] = None,
    ) -> "Sandbox":
        """Return the sandbox with an id, which must exist."""
        self = cls.__new__(cls)
        self._bind(controller, url, token)
        try:
            info = self.controller.get_sandbox(id)
        except BaseException:
            self._close()
            raise
        self._name(info["id"])
        return self

    def _bind(self, controller: Optional[Controller], url: Optional[str], token: Optional[str]) -> None:
        self._own = controller is None
        self.controller = controller or Controller(url, token)

    def _name(self, id: str) -> None:
        self.id = id
        self.commands = Commands(self.controller, id)
        self.files = Files(self.controller, id)

    def _close(self) -> None:
        if self._own:
            self.controller.close()

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            self.kill()
        except ForkdError:
            # The error of the block, if there is one, is the one to show.
            if kind is None:
                raise

    def info(self) -> Dict[str, Any]:
        """Describe the sandbox."""
        return self.controller.get_sandbox(self.id)

    def eval(self, code: str, timeout: Optional[float] = None) -> Any:
        """Evaluate code in the warm runtime and return its value.

        A value that JSON cannot carry comes as a Repr, that is its text;
        statements give None. An exception in the code raises EvalError. State is
        kept from call to call.
        """
        return self.run_code(code, timeout).value

    def run_code(self, code: str, timeout: Optional[float] = None) -> Evaluation:
        """Evaluate like eval, and return what the code printed too."""
        answer = self.controller.eval_code(self.id, code, timeout)
        error = answer["error"]
        if error is not None:
            raise EvalError(error["type"], error["message"], error["traceback"])
        value = answer["result"]
        if "value" in answer:
            value = answer["value"]
        elif value is not None:
            value = Repr(value)
        return Evaluation(value, answer["result"], answer["stdout"], answer["stderr"])

    def branch(self, tag: Optional[str] = None, mode: str = "live", wait: bool = True) -> Branch:
        """Make a snapshot of the sandbox as it is now; it goes on running.

        tag is made up unless it is given. mode is "live" (what has changed since the
        last snapshot; can be forked from before it is on disk), "diff" (the same,
        once it is on disk) or "full" (all of it, standing on no other snapshot).
        Without wait the call returns as soon as the sandbox runs again.
        """
        return _branch(self.controller.branch_sandbox(self.id, tag, mode, wait))

    def fork(
        self,
        n: int = 1,
        *,
        timeout: Optional[float] = None,
        memory_limit_mib: Optional[int] = None,
        prewarm: bool = False,
    ) -> "List[Sandbox]":
        """Return n children of the sandbox as it is now; it goes on running.

        They have its processes, files and variables, and nothing that it does later.
        Either all are made or none. End them with kill, or each in a with block.
        """
        try:
            infos = self.controller.fork_sandbox(
                self.id,
                n,
                timeout_secs=timeout,
                memory_limit_mib=memory_limit_mib,
                prewarm=prewarm,
            )
        except PartialSpawnError as err:
            for child in self._children(err.sandboxes):
                child.kill()
            raise
        return self._children(infos)

    def _children(self, infos: List[Dict[str, Any]]) -> "List[Sandbox]":
        children = []
        for info in infos:
            child = Sandbox.__new__(Sandbox)
            child._bind(self.controller, None, None)
            child._name(info["id"])
            children.append(child)
        return children

    def rollback(self, tag: str) -> None:
        """Take the sandbox back, in place, to a snapshot that it descends from.

        That is the one it runs from, one that this stands on, or a branch of it.
        """
        self.controller.rollback_sandbox(self.id, str(tag))

    def interrupt(self) -> None:
        """Interrupt the evaluation that is running; the runtime keeps its state."""
        self.controller.interrupt_sandbox(self.id)

    def ping(self) -> Dict[str, Any]:
        """Ask for a sign of life."""
        return self.controller.ping_sandbox(self.id)

    def kill(self) -> None:
        """End the sandbox. Ending one that has ended is fine."""
        try:
            self.controller.kill_sandbox(self.id)
        except ForkdError as err:
            if err.code != "not_found":
                raise
        finally:
            self._close()


def _branch(info: Mapping[str, Any]) -> Branch:
    return Branch(
        tag=info["tag"],
        branched_from=info["branched_from"],
        mode=info["mode"],
        status=info["status"],
        pause_ms=info.get("pause_ms", 0.0),
    )
