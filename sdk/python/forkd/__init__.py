"""Fork warm microVMs.

>>> from forkd import Sandbox
>>> with Sandbox() as box:
...     box.eval("numpy.zeros(5).tolist()")
...     box.commands.run("uname -m").stdout
[0.0, 0.0, 0.0, 0.0, 0.0]
'riscv64\\n'

Sandbox is one child; Controller speaks to the daemon itself. AsyncSandbox and
AsyncController are the same for asyncio. All find the daemon in the same way: the
url argument, or FORKD_URL, or the Unix socket in FORKD_HOME, or that of this
user's daemon, or http://127.0.0.1:8889; with the token argument or FORKD_TOKEN.
"""

from ._code import AsyncContexts, Execution, Result
from ._commands import AsyncCommands, AsyncProcess, ProcessInfo, PtySize
from ._controller import AsyncController
from ._errors import (
    AlreadyExistsError,
    CapacityExceededError,
    CommandFailedError,
    CommandTimeout,
    ConnectError,
    DeadlineError,
    EvalError,
    EvalTimeout,
    FailedPreconditionError,
    ForbiddenError,
    ForkdError,
    InUseError,
    InvalidArgumentError,
    NoRuntimeError,
    NoSpaceError,
    NotBootableError,
    NotFoundError,
    PartialEvalError,
    PartialSpawnError,
    PausedError,
    PortClosedError,
    RuntimeLostError,
    SandboxDeadError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedError,
)
from ._evals import EvalOutcome, Repr
from ._files import AsyncFiles, AsyncWatch, Change, FileInfo
from ._opening import Opening
from ._output import CommandResult
from ._ports import AsyncConnection, AsyncPorts, Response
from ._records import (
    CodeContext,
    CommandOptions,
    EvalAnswer,
    ExecAnswer,
    ForkFields,
    ForkOptions,
    Limits,
    Metrics,
    Ping,
    Progress,
    SandboxInfo,
    SnapshotInfo,
    TreeNode,
    Version,
    Workspace,
)
from ._sandbox import AsyncSandbox, Branch
from ._sync import Commands, Connection, Contexts, Controller, Files, Ports, Process, Sandbox, Watch

__all__ = [
    "AlreadyExistsError",
    "AsyncCommands",
    "AsyncConnection",
    "AsyncContexts",
    "AsyncController",
    "AsyncFiles",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncWatch",
    "Branch",
    "CapacityExceededError",
    "Change",
    "CodeContext",
    "CommandFailedError",
    "CommandOptions",
    "CommandResult",
    "CommandTimeout",
    "Commands",
    "ConnectError",
    "Connection",
    "Contexts",
    "Controller",
    "DeadlineError",
    "EvalAnswer",
    "EvalError",
    "EvalOutcome",
    "EvalTimeout",
    "ExecAnswer",
    "Execution",
    "FailedPreconditionError",
    "FileInfo",
    "Files",
    "ForbiddenError",
    "ForkFields",
    "ForkOptions",
    "Limits",
    "ForkdError",
    "InUseError",
    "InvalidArgumentError",
    "Metrics",
    "NoRuntimeError",
    "NoSpaceError",
    "NotBootableError",
    "NotFoundError",
    "Opening",
    "PartialEvalError",
    "PartialSpawnError",
    "PausedError",
    "Ping",
    "PortClosedError",
    "Ports",
    "Process",
    "ProcessInfo",
    "Progress",
    "PtySize",
    "Repr",
    "Response",
    "Result",
    "RuntimeLostError",
    "Sandbox",
    "SandboxDeadError",
    "SandboxInfo",
    "SnapshotInfo",
    "TooLargeError",
    "TreeNode",
    "UnauthorizedError",
    "UnavailableError",
    "UnsupportedError",
    "Version",
    "Watch",
    "Workspace",
]

__version__ = "0.2.0"
