"""The files of a sandbox."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, List, Mapping, Optional

from ._controller import Controller, box_path
from ._data import Data, pieces_of
from ._errors import ForkdError


@dataclass(frozen=True)
class FileInfo:
    """A file. Names that are not UTF-8 have surrogates, as with os.listdir."""

    name: str
    path: str
    type: str  # file, dir, symlink, fifo, socket or device
    size: int
    mode: int
    modified_at: datetime
    uid: int
    gid: int
    target: Optional[str]  # of a symbolic link


class Files:
    """Works on the files of a sandbox. Paths are absolute."""

    def __init__(self, controller: Controller, id: str):
        self._controller = controller
        self._id = id

    def _path(self, route: str, **query: Any) -> str:
        coded = {name: os.fsencode(value) if isinstance(value, str) else value for name, value in query.items()}
        return box_path(self._id, "/files" + route, **coded)

    def _call(self, method: str, route: str, **query: Any) -> Any:
        return self._controller.transport.call(method, self._path(route, **query))

    def read(self, path: str, offset: Optional[int] = None, length: Optional[int] = None) -> bytes:
        """Return the bytes of a file, or some of them."""
        url = self._path("", path=path, offset=offset, length=length)
        with self._controller.transport.exchange("GET", url) as answer:
            return answer.read()

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """Return the text of a file."""
        return self.read(path).decode(encoding)

    def download(self, path: str, to: IO[bytes]) -> int:
        """Copy a file of any size into a binary file and return its size."""
        return self._controller.transport.download(self._path("", path=path), to)

    def write(
        self,
        path: str,
        data: Data,
        mode: Optional[int] = None,
        user: Optional[str] = None,
        parents: bool = True,
    ) -> None:
        """Create or replace a file with text, bytes, a binary file or pieces.

        An existing file changes at once or not at all.
        """
        url = self._path("", path=path, mode=None if mode is None else f"{mode:04o}", user=user, parents=_flag(parents))
        body = data.encode() if isinstance(data, str) else data
        if not isinstance(body, bytes):
            body = pieces_of(body)
        headers = {"Content-Type": "application/octet-stream"}
        with self._controller.transport.exchange("PUT", url, body, headers) as answer:
            answer.read()

    def list(self, path: str) -> "List[FileInfo]":
        """List a directory, by name."""
        return [_file_info(entry) for entry in self._call("GET", "/list", path=path)]

    def stat(self, path: str) -> FileInfo:
        """Describe a file; a symbolic link is not followed."""
        return _file_info(self._call("GET", "/stat", path=path))

    def exists(self, path: str) -> bool:
        """Tell whether there is a file."""
        try:
            self.stat(path)
        except ForkdError as err:
            if err.code != "not_found":
                raise
            return False
        return True

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or a directory, with recursive all that is in it."""
        self._call("DELETE", "", path=path, recursive=_flag(recursive))

    def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a directory; with parents, those above it, and it may exist."""
        self._call("POST", "/mkdir", path=path, parents=_flag(parents))

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory."""
        self._call("POST", "/rename", **{"from": old, "to": new})


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _file_info(entry: Mapping[str, Any]) -> FileInfo:
    def text(field: str) -> str:
        exact = entry.get(field + "_b64")
        return entry.get(field, "") if exact is None else os.fsdecode(base64.b64decode(exact))

    return FileInfo(
        name=text("name"),
        path=text("path"),
        type=entry["type"],
        size=entry["size"],
        mode=int(entry["mode"], 8),
        modified_at=_time(entry["modified_at"]),
        uid=entry["uid"],
        gid=entry["gid"],
        target=text("target") or None,
    )


def _time(text: str) -> datetime:
    """Read an RFC 3339 time, whose fraction Python takes in six digits only."""
    text = text.replace("Z", "+00:00")
    if "." in text:
        whole, rest = text.split(".", 1)
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{whole}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}"
    return datetime.fromisoformat(text)
