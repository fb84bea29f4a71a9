"""One sandbox, asynchronously."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Type, TypeVar

from ._code import AsyncContexts, Execution, OnResult, evaluate, run_code
from ._commands import AsyncCommands
from ._controller import AsyncController, given, known
from ._errors import NotFoundError, PartialSpawnError
from ._files import AsyncFiles
from ._opening import Opening
from ._output import OnOutput
from ._ports import AsyncPorts
from ._records import ForkOptions, Metrics, Ping, SandboxInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_TAG = "pyagent"
Self = TypeVar("Self", bound="AsyncSandbox")


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


class AsyncSandbox:
    """A sandbox forked from a snapshot.

    >>> async with AsyncSandbox.create() as box:
    ...     await box.eval("1 + 1")
    2
    """

    id: str
    controller: AsyncController
    commands: AsyncCommands
    files: AsyncFiles
    contexts: AsyncContexts
    ports: AsyncPorts

    def __init__(self, id: str, controller: AsyncController):
        """Speak to the sandbox with an id, whether it exists or not."""
        self.id = id
        self.controller = controller
        self._own = False  # the controller ends with the sandbox
        transport = controller.transport
        self.commands = AsyncCommands(transport, id)
        self.files = AsyncFiles(transport, id)
        self.contexts = AsyncContexts(transport, id)
        self.ports = AsyncPorts(transport, id)

    @classmethod
    def create(
        cls: "Type[AsyncSandbox]",
        tag: Optional[str] = None,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        controller: Optional[AsyncController] = None,
        **options: "Unpack[ForkOptions]",
    ) -> "Opening[AsyncSandbox]":
        """Fork a sandbox: await it, or use it with "async with", which ends it.

        tag is FORKD_TAG or "pyagent" by default; see ForkOptions for the options. A
        controller, if given, is used and not closed. If this is cancelled, no
        sandbox is left behind.
        """
        return Opening(cls._create(tag, url, token, controller, options), AsyncSandbox.kill)

    @classmethod
    async def _create(
        cls: Type[Self],
        tag: Optional[str],
        url: Optional[str],
        token: Optional[str],
        controller: Optional[AsyncController],
        options: ForkOptions,
    ) -> Self:
        name = tag or os.environ.get("FORKD_TAG") or DEFAULT_TAG
        fields = fork_fields(options)
        speaker = controller or AsyncController(url, token)
        try:
            info = (await speaker.spawn_sandboxes(str(name), **fields))[0]
        except BaseException:
            if controller is None:
                await speaker.close()
            raise
        return cls._of(info["id"], speaker, controller is None)

    @classmethod
    def connect(
        cls: "Type[AsyncSandbox]",
        id: str,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        controller: Optional[AsyncController] = None,
    ) -> "Opening[AsyncSandbox]":
        """Find the sandbox with an id, which must exist; nothing changes for it."""
        return Opening(cls._connect(id, url, token, controller), AsyncSandbox.kill)

    @classmethod
    async def _connect(
        cls: Type[Self],
        id: str,
        url: Optional[str],
        token: Optional[str],
        controller: Optional[AsyncController],
    ) -> Self:
        speaker = controller or AsyncController(url, token)
        try:
            info = await speaker.get_sandbox(id)
        except BaseException:
            if controller is None:
                await speaker.close()
            raise
        return cls._of(info["id"], speaker, controller is None)

    @classmethod
    def _of(cls: Type[Self], id: str, controller: AsyncController, own: bool) -> Self:
        self = cls(id, controller)
        self._own = own
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            await self.kill()
        except Exception:
            # The error of the block, if there is one, is the one to show.
            if kind is None:
                raise

    def within(self: Self, secs: Optional[float]) -> Self:
        """Return the same sandbox with a time limit for each call.

        A call that takes longer raises DeadlineError, and what it had begun is
        stopped: a command is killed, a run is interrupted.
        """
        return type(self)(self.id, self.controller.within(secs))

    # Its life

    async def info(self) -> SandboxInfo:
        """Describe the sandbox."""
        return await self.controller.get_sandbox(self.id)

    async def metrics(self) -> Metrics:
        """Tell what the sandbox uses."""
        return await self.controller.sandbox_metrics(self.id)

    async def ping(self) -> Ping:
        """Ask for a sign of life."""
        return await self.controller.ping_sandbox(self.id)

    async def set_timeout(self, secs: Optional[float], extend: bool = False) -> SandboxInfo:
        """Change how long it still lives, None for ever; with extend never to less."""
        return await self.controller.set_sandbox_timeout(self.id, secs, extend)

    async def pause(self) -> SandboxInfo:
        """Save it to disk, memory and processes included, so that it uses no memory.

        It outlives the daemon and has no lifetime until it is resumed.
        """
        return await self.controller.pause_sandbox(self.id)

    async def resume(self, timeout: Optional[float] = None) -> SandboxInfo:
        """Let it go on where it was paused; its lifetime begins anew.

        One that has ended since goes on as it was when it was paused last, as its ``info`` tells.
        """
        return await self.controller.resume_sandbox(self.id, timeout)

    async def kill(self) -> None:
        """End the sandbox, running or paused. Ending one that has ended is fine."""
        try:
            await self.controller.kill_sandbox(self.id)
        except NotFoundError:
            pass
        finally:
            if self._own:
                await self.controller.close()

    # Copies

    async def fork(self, n: int = 1, **options: "Unpack[ForkOptions]") -> "List[AsyncSandbox]":
        """Return n children of the sandbox as it is now; it goes on running.

        They have its processes, files, variables and environment, and nothing that it
        does later. Either all are made or none. End them with kill, or each in a with
        block.
        """
        try:
            infos = await self.controller.fork_sandbox(self.id, n, **fork_fields(options))
        except PartialSpawnError as err:
            for info in err.sandboxes:
                await AsyncSandbox(info["id"], self.controller).kill()
            raise
        return [AsyncSandbox(info["id"], self.controller) for info in infos]

    async def branch(self, tag: Optional[str] = None, mode: str = "live", wait: bool = True) -> Branch:
        """Make a snapshot of the sandbox as it is now; it goes on running.

        tag is made up unless it is given. mode is "live" (what has changed since the
        last snapshot; can be forked from before it is on disk), "diff" (the same,
        once it is on disk) or "full" (all of it, standing on no other snapshot).
        Without wait the call returns as soon as the sandbox runs again.
        """
        return _branch(await self.controller.branch_sandbox(self.id, tag, mode, wait))

    async def rollback(self, tag: str) -> None:
        """Take the sandbox back, in place, to a snapshot that it descends from.

        That is the one it runs from, one that this stands on, or a branch of it.
        """
        await self.controller.rollback_sandbox(self.id, str(tag))

    # Code

    async def eval(self, code: str, timeout: Optional[float] = None) -> Any:
        """Evaluate code in the warm runtime and return its value.

        A value that JSON cannot carry comes as a Repr, that is its text;
        statements give None. An exception in the code raises EvalError, the time
        limit EvalTimeout. State is kept from call to call.
        """
        return await evaluate(self.controller.transport, self.id, code, timeout)

    async def run_code(
        self,
        code: str,
        timeout: Optional[float] = None,
        *,
        context: Optional[str] = None,
        language: Optional[str] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        on_stdout: OnOutput = None,
        on_stderr: OnOutput = None,
        on_result: OnResult = None,
    ) -> Execution:
        """Run code like a cell of a notebook, and return all that it brought forth.

        It runs in the context with that id, or in that of the language: "python", the
        default, whose context is the warm runtime, "javascript" or "bash". cwd and user
        are for a context that is made for this. The callbacks get text and Results as
        they come. An exception in the code is in the result; a run that is
        interrupted, cancelled or out of time is interrupted there, and state is kept.
        """
        request = given(
            code=code,
            timeout_secs=timeout,
            context=context,
            language=language,
            cwd=cwd,
            user=user,
            env=None if env is None else dict(env),
        )
        return await run_code(self.controller.transport, self.id, request, on_stdout, on_stderr, on_result)

    async def interrupt(self) -> None:
        """Interrupt the evaluation that is running; the runtime keeps its state."""
        await self.controller.interrupt_sandbox(self.id)

    # Ports

    def get_url(self, port: int) -> str:
        """Return the URL under which the daemon passes HTTP on to a port; see ports.url."""
        return self.ports.url(port)


def fork_fields(options: ForkOptions) -> Dict[str, Any]:
    """Return what the API calls the options of a sandbox."""
    fields = known(ForkOptions, options)
    for name in "timeout", "idle_timeout":
        if name in fields:
            fields[name + "_secs"] = fields.pop(name)
    return fields


def _branch(info: Mapping[str, Any]) -> Branch:
    return Branch(
        tag=info["tag"],
        branched_from=info["branched_from"],
        mode=info["mode"],
        status=info["status"],
        pause_ms=info.get("pause_ms", 0.0),
    )
