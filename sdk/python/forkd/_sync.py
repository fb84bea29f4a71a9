"""The blocking face of the SDK.

Each class has the asynchronous one of the same name behind it, over an IO that
blocks, and each of its methods runs that one's coroutine to its end.
"""

from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Coroutine,
    Generic,
    Iterator,
    List,
    Optional,
    Type,
    TypeVar,
)

from ._code import AsyncContexts
from ._commands import AsyncCommands, AsyncProcess, ProcessInfo
from ._controller import AsyncController
from ._files import AsyncFiles, AsyncWatch, Change
from ._io import BlockingIO, iterate, run
from ._opening import Opening
from ._ports import AsyncConnection, AsyncPorts
from ._records import ForkOptions
from ._sandbox import AsyncSandbox

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Unpack

    P = ParamSpec("P")

T = TypeVar("T")
C = TypeVar("C")
Self = TypeVar("Self")


def _blocking(
    method: "Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]",
) -> "Callable[Concatenate[Any, P], T]":
    """Return a method that runs a coroutine method of the core."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return run(method(self._core, *args, **kwargs))

    return call


def _iterating(
    method: "Callable[Concatenate[Any, P], AsyncIterator[T]]",
) -> "Callable[Concatenate[Any, P], Iterator[T]]":
    """Return a method that iterates over what a method of the core yields."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Iterator[T]:
        return iterate(method(self._core, *args, **kwargs))

    return call


def _opening(
    method: "Callable[Concatenate[Any, P], Opening[C]]",
    wrap: Callable[[C], T],
) -> "Callable[Concatenate[Any, P], T]":
    """Return a method that waits for what a method of the core opens."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return wrap(run(method(self._core, *args, **kwargs).opening))

    return call


class _Blocking(Generic[C]):
    _core: C

    def __init__(self, core: C):
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core)


class Process(_Blocking[AsyncProcess]):
    """A process that was started or attached to."""

    @property
    def info(self) -> ProcessInfo:
        return self._core.info

    @property
    def pid(self) -> int:
        return self._core.pid

    @property
    def stdout(self) -> str:
        """What has come so far."""
        return self._core.stdout

    @property
    def stderr(self) -> str:
        """What has come so far."""
        return self._core.stderr

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.disconnect()

    wait = _blocking(AsyncProcess.wait)
    disconnect = _blocking(AsyncProcess.disconnect)
    send_stdin = _blocking(AsyncProcess.send_stdin)
    close_stdin = _blocking(AsyncProcess.close_stdin)
    send_signal = _blocking(AsyncProcess.send_signal)
    kill = _blocking(AsyncProcess.kill)
    resize = _blocking(AsyncProcess.resize)


class Commands(_Blocking[AsyncCommands]):
    """Runs commands in a sandbox."""

    run = _blocking(AsyncCommands.run)
    start = _opening(AsyncCommands.start, Process)
    attach = _opening(AsyncCommands.attach, Process)
    list = _blocking(AsyncCommands.list)
    kill = _blocking(AsyncCommands.kill)


class Watch(_Blocking[AsyncWatch]):
    """Yields the changes in a directory until it is closed."""

    def __iter__(self) -> Iterator[Change]:
        return iterate(self._core)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    next = _blocking(AsyncWatch.next)
    close = _blocking(AsyncWatch.close)


class Files(_Blocking[AsyncFiles]):
    """Works on the files of a sandbox. Paths are absolute."""

    read = _blocking(AsyncFiles.read)
    read_text = _blocking(AsyncFiles.read_text)
    stream = _iterating(AsyncFiles.stream)
    download = _blocking(AsyncFiles.download)
    write = _blocking(AsyncFiles.write)
    list = _blocking(AsyncFiles.list)
    stat = _blocking(AsyncFiles.stat)
    exists = _blocking(AsyncFiles.exists)
    remove = _blocking(AsyncFiles.remove)
    mkdir = _blocking(AsyncFiles.mkdir)
    rename = _blocking(AsyncFiles.rename)
    compose = _blocking(AsyncFiles.compose)
    watch = _opening(AsyncFiles.watch, Watch)


class Contexts(_Blocking[AsyncContexts]):
    """The interpreters of a sandbox that keep state between runs."""

    create = _blocking(AsyncContexts.create)
    list = _blocking(AsyncContexts.list)
    remove = _blocking(AsyncContexts.remove)
    restart = _blocking(AsyncContexts.restart)


class Connection(_Blocking[AsyncConnection]):
    """A TCP connection to a port of a sandbox."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    send = _blocking(AsyncConnection.send)
    receive = _blocking(AsyncConnection.receive)
    receive_all = _blocking(AsyncConnection.receive_all)
    end = _blocking(AsyncConnection.end)
    close = _blocking(AsyncConnection.close)


class Ports(_Blocking[AsyncPorts]):
    """Reaches what listens on the TCP ports of a sandbox."""

    def url(self, port: int) -> str:
        """Return the URL under which the daemon passes HTTP on to a port.

        WebSocket works, too. If the daemon has a token, requests need it as
        "Authorization: Bearer TOKEN".
        """
        return self._core.url(port)

    open = _opening(AsyncPorts.open, Connection)
    wait = _blocking(AsyncPorts.wait)
    request = _blocking(AsyncPorts.request)


class Controller(_Blocking[AsyncController]):
    """Speaks to a daemon. Answers are the records that the REST API has.

    It keeps connections and may be used from several threads.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None):
        super().__init__(AsyncController._over(BlockingIO(), url, token))

    @classmethod
    def _of(cls, core: AsyncController) -> "Controller":
        self = cls.__new__(cls)
        self._core = core
        return self

    def within(self, secs: Optional[float]) -> "Controller":
        """Return the same controller with a time limit for each call.

        A call that takes longer raises DeadlineError, and what it had begun in the
        daemon is stopped. There is no limit by default.
        """
        return Controller._of(self._core.within(secs))

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    close = _blocking(AsyncController.close)

    health = _blocking(AsyncController.health)
    version = _blocking(AsyncController.version)
    daemon_metrics = _blocking(AsyncController.daemon_metrics)
    tree = _blocking(AsyncController.tree)

    list_snapshots = _blocking(AsyncController.list_snapshots)
    get_snapshot = _blocking(AsyncController.get_snapshot)
    create_snapshot = _blocking(AsyncController.create_snapshot)
    delete_snapshot = _blocking(AsyncController.delete_snapshot)
    wait_snapshot = _blocking(AsyncController.wait_snapshot)
    derive_snapshot = _blocking(AsyncController.derive_snapshot)
    compact_snapshot = _blocking(AsyncController.compact_snapshot)
    verify_snapshot = _blocking(AsyncController.verify_snapshot)
    pack_snapshot = _blocking(AsyncController.pack_snapshot)
    unpack_snapshot = _blocking(AsyncController.unpack_snapshot)
    push_snapshot = _blocking(AsyncController.push_snapshot)
    pull_snapshot = _blocking(AsyncController.pull_snapshot)

    create_workspace = _blocking(AsyncController.create_workspace)
    list_workspaces = _blocking(AsyncController.list_workspaces)
    get_workspace = _blocking(AsyncController.get_workspace)
    suspend_workspace = _blocking(AsyncController.suspend_workspace)
    resume_workspace = _blocking(AsyncController.resume_workspace)
    delete_workspace = _blocking(AsyncController.delete_workspace)

    spawn_sandboxes = _blocking(AsyncController.spawn_sandboxes)
    fork_sandbox = _blocking(AsyncController.fork_sandbox)
    list_sandboxes = _blocking(AsyncController.list_sandboxes)
    get_sandbox = _blocking(AsyncController.get_sandbox)
    kill_sandbox = _blocking(AsyncController.kill_sandbox)
    pause_sandbox = _blocking(AsyncController.pause_sandbox)
    resume_sandbox = _blocking(AsyncController.resume_sandbox)
    set_sandbox_timeout = _blocking(AsyncController.set_sandbox_timeout)
    sandbox_metrics = _blocking(AsyncController.sandbox_metrics)
    branch_sandbox = _blocking(AsyncController.branch_sandbox)
    rollback_sandbox = _blocking(AsyncController.rollback_sandbox)
    exec_command = _blocking(AsyncController.exec_command)
    eval_code = _blocking(AsyncController.eval_code)
    eval_all = _iterating(AsyncController.eval_all)
    eval_each = _blocking(AsyncController.eval_each)
    interrupt_sandbox = _blocking(AsyncController.interrupt_sandbox)
    ping_sandbox = _blocking(AsyncController.ping_sandbox)


class Sandbox(_Blocking[AsyncSandbox]):
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
        controller: Optional[Controller] = None,
        **options: "Unpack[ForkOptions]",
    ):
        """Fork a sandbox.

        tag is FORKD_TAG or "pyagent" by default; see ForkOptions for the options. A
        controller, if given, is used and not closed.
        """
        self._open(lambda core: AsyncSandbox._create(tag, None, None, core, options), url, token, controller)

    @classmethod
    def connect(
        cls: "Type[Sandbox]",
        id: str,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        controller: Optional[Controller] = None,
    ) -> "Sandbox":
        """Find the sandbox with an id, which must exist; nothing changes for it."""
        self = cls.__new__(cls)
        self._open(lambda core: AsyncSandbox._connect(id, None, None, core), url, token, controller)
        return self

    def _open(
        self,
        opening: Callable[[AsyncController], Coroutine[Any, Any, AsyncSandbox]],
        url: Optional[str],
        token: Optional[str],
        controller: Optional[Controller],
    ) -> None:
        speaker = controller or Controller(url, token)
        try:
            self._bind(run(opening(speaker._core)), speaker)
        except BaseException:
            if controller is None:
                speaker.close()
            raise
        self._core._own = controller is None

    @classmethod
    def _of(cls, core: AsyncSandbox, controller: Controller) -> "Sandbox":
        self = cls.__new__(cls)
        self._bind(core, controller)
        return self

    def _bind(self, core: AsyncSandbox, controller: Controller) -> None:
        self._core = core
        self.controller = controller
        self.commands = Commands(core.commands)
        self.files = Files(core.files)
        self.contexts = Contexts(core.contexts)
        self.ports = Ports(core.ports)

    @property
    def id(self) -> str:
        return self._core.id

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        run(self._core.__aexit__(kind, value, traceback))

    def within(self, secs: Optional[float]) -> "Sandbox":
        """Return the same sandbox with a time limit for each call.

        A call that takes longer raises DeadlineError, and what it had begun is
        stopped: a command is killed, a run is interrupted.
        """
        return Sandbox._of(self._core.within(secs), self.controller.within(secs))

    def fork(self, n: int = 1, **options: "Unpack[ForkOptions]") -> "List[Sandbox]":
        """Return n children of the sandbox as it is now; it goes on running.

        They have its processes, files, variables and environment, and nothing that it
        does later. Either all are made or none. End them with kill, or each in a with
        block.
        """
        return [Sandbox._of(child, self.controller) for child in run(self._core.fork(n, **options))]

    def get_url(self, port: int) -> str:
        """Return the URL under which the daemon passes HTTP on to a port; see ports.url."""
        return self._core.get_url(port)

    info = _blocking(AsyncSandbox.info)
    metrics = _blocking(AsyncSandbox.metrics)
    ping = _blocking(AsyncSandbox.ping)
    set_timeout = _blocking(AsyncSandbox.set_timeout)
    pause = _blocking(AsyncSandbox.pause)
    resume = _blocking(AsyncSandbox.resume)
    kill = _blocking(AsyncSandbox.kill)
    branch = _blocking(AsyncSandbox.branch)
    rollback = _blocking(AsyncSandbox.rollback)
    eval = _blocking(AsyncSandbox.eval)
    run_code = _blocking(AsyncSandbox.run_code)
    interrupt = _blocking(AsyncSandbox.interrupt)
