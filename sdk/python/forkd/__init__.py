"""Fork warm microVMs.

>>> from forkd import Sandbox
>>> with Sandbox() as box:
...     box.eval("numpy.zeros(5).tolist()")
...     box.commands.run("uname -m").stdout
[0.0, 0.0, 0.0, 0.0, 0.0]
'riscv64\\n'

Sandbox is one child; Controller speaks to the daemon itself. Both find the
daemon in the same way: the url argument, or FORKD_URL, or the Unix socket in
FORKD_HOME, or that of this user's daemon, or http://127.0.0.1:8889; with the token argument or
FORKD_TOKEN.
"""

from ._commands import CommandResult, Commands
from ._controller import Controller
from ._errors import (
    CommandTimeout,
    ConnectError,
    EvalError,
    ForkdError,
    PartialSpawnError,
)
from ._files import FileInfo, Files
from ._sandbox import Branch, Evaluation, Repr, Sandbox

__all__ = [
    "Branch",
    "CommandResult",
    "CommandTimeout",
    "Commands",
    "ConnectError",
    "Controller",
    "EvalError",
    "Evaluation",
    "FileInfo",
    "Files",
    "ForkdError",
    "PartialSpawnError",
    "Repr",
    "Sandbox",
]

__version__ = "0.1.0"
