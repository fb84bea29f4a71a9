"""The files of a sandbox, asynchronously."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any, AsyncIterator, Dict, List, Mapping, Optional, Sequence, Union

from ._controller import box_route, given
from ._data import AsyncData, check
from ._errors import NotFoundError
from ._opening import Opening
from ._transport import BYTES, LINES, STREAM_SECS, Answer, Transport


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
    owner: str = ""
    group: str = ""
    attrs: Dict[str, str] = field(default_factory=dict[str, str])  # extended, of the namespace user


@dataclass(frozen=True)
class Change:
    """Something that happened in a directory that is watched."""

    kind: str  # create, write, remove, rename (away) or chmod
    name: str  # relative to the directory
    entry: Optional[FileInfo]  # if asked for, and it is still there


async def _copy(answer: Answer, to: IO[bytes]) -> int:
    size = 0
    async for piece in answer.pieces():
        to.write(piece)
        size += len(piece)
    return size


class AsyncFiles:
    """Works on the files of a sandbox. Paths are absolute."""

    def __init__(self, transport: Transport, id: str):
        self._transport = transport
        self._id = id

    def _path(self, *names: str, **query: Any) -> str:
        coded = {name: os.fsencode(value) if isinstance(value, str) else value for name, value in query.items()}
        return box_route(self._id, "files", *names, **coded)

    async def _call(self, method: str, *names: str, **query: Any) -> Any:
        return await self._transport.call(method, self._path(*names, **query))

    async def read(self, path: str, offset: Optional[int] = None, length: Optional[int] = None) -> bytes:
        """Return the bytes of a file, or some of them."""
        async with self._transport.exchange("GET", self._path(path=path, offset=offset, length=length)) as answer:
            return await answer.read()

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """Return the text of a file."""
        return (await self.read(path)).decode(encoding)

    async def stream(
        self, path: str, offset: Optional[int] = None, length: Optional[int] = None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a file of any size in pieces."""
        async with self._transport.exchange("GET", self._path(path=path, offset=offset, length=length)) as answer:
            async for piece in answer.pieces():
                yield piece

    async def download(self, path: str, to: Union[str, "os.PathLike[str]", IO[bytes]]) -> int:
        """Copy a file of any size to a path here, or into a binary file, and return its size.

        What is at the path here is replaced. A copy that fails may leave a part of the file.
        """
        async with self._transport.exchange("GET", self._path(path=path)) as answer:
            if isinstance(to, (str, os.PathLike)):
                with open(to, "wb") as file:
                    return await _copy(answer, file)
            return await _copy(answer, to)

    async def write(
        self,
        path: str,
        data: AsyncData,
        mode: Optional[int] = None,
        user: Optional[str] = None,
        parents: bool = True,
        attrs: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Create or replace a file with text, bytes, a binary file or pieces.

        An existing file changes at once or not at all. Its permissions become mode, 0644
        by default; its owner stays unless user is given.
        """
        check(data)
        pairs = [f"{name}={value}" for name, value in (attrs or {}).items()]
        url = self._path(path=path, mode=_octal(mode), user=user, parents=parents, attr=pairs)
        async with self._transport.exchange("PUT", url, data, BYTES) as answer:
            await answer.read()

    async def list(self, path: str, depth: int = 1) -> List[FileInfo]:
        """List a directory, by name, and depth - 1 levels below it."""
        if depth == 1:
            found = await self._call("GET", "list", path=path)
        else:
            found = await self._call("GET", "tree", path=path, depth=depth)
        return [_file_info(entry) for entry in found]

    async def stat(self, path: str) -> FileInfo:
        """Describe a file; a symbolic link is not followed."""
        return _file_info(await self._call("GET", "stat", path=path))

    async def exists(self, path: str) -> bool:
        """Tell whether there is a file."""
        try:
            await self.stat(path)
        except NotFoundError:
            return False
        return True

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or a directory, with recursive all that is in it."""
        await self._call("DELETE", path=path, recursive=recursive)

    async def mkdir(self, path: str, parents: bool = True, user: Optional[str] = None) -> None:
        """Make a directory; with parents, those above it, and it may exist."""
        await self._call("POST", "mkdir", path=path, parents=parents, user=user)

    async def rename(self, old: str, new: str) -> None:
        """Move a file or a directory."""
        await self._call("POST", "rename", **{"from": old, "to": new})

    async def compose(
        self,
        path: str,
        sources: Sequence[str],
        mode: Optional[int] = None,
        user: Optional[str] = None,
        parents: bool = True,
    ) -> FileInfo:
        """Make a file of the contents of others, in their order, and remove those."""
        body = given(target=path, sources=list(sources), mode=_octal(mode), user=user, parents=parents)
        return _file_info(await self._transport.call("POST", box_route(self._id, "files", "compose"), body))

    def watch(self, path: str, recursive: bool = False, entries: bool = False) -> "Opening[AsyncWatch]":
        """Begin to watch a directory, with recursive those below it too.

        Changes from then on are yielded, in order and none left out. With entries
        they describe what has changed.
        """
        return Opening(self._watch(path, recursive, entries), AsyncWatch.close)

    async def _watch(self, path: str, recursive: bool, entries: bool) -> "AsyncWatch":
        url = self._path("watch", path=path, recursive=recursive, entries=entries)
        answer = await self._transport.begin("GET", url, None, LINES, STREAM_SECS)
        answer.stream.limits.until = None  # the limit of a call was for its beginning
        return AsyncWatch(answer)


class AsyncWatch:
    """Yields the changes in a directory until it is closed."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self._events = answer.events()

    def __aiter__(self) -> "AsyncWatch":
        return self

    async def __anext__(self) -> Change:
        return await self.next()

    async def next(self) -> Change:
        """Wait for the next change."""
        event = await self._events.__anext__()
        entry = event.get("entry")
        return Change(event["kind"], _text(event, "name"), None if entry is None else _file_info(entry))

    async def close(self) -> None:
        """Watch no longer."""
        self._answer.stream.close()


def _octal(mode: Optional[int]) -> Optional[str]:
    return None if mode is None else f"{mode:04o}"


def _text(record: Mapping[str, Any], name: str) -> str:
    exact = record.get(name + "_b64")
    return record.get(name, "") if exact is None else os.fsdecode(base64.b64decode(exact))


def _file_info(entry: Mapping[str, Any]) -> FileInfo:
    return FileInfo(
        name=_text(entry, "name"),
        path=_text(entry, "path"),
        type=entry["type"],
        size=entry["size"],
        mode=int(entry["mode"], 8),
        modified_at=_time(entry["modified_at"]),
        uid=entry["uid"],
        gid=entry["gid"],
        target=_text(entry, "target") or None,
        owner=entry.get("owner", ""),
        group=entry.get("group", ""),
        attrs=dict(entry.get("attrs") or {}),
    )


def _time(text: str) -> datetime:
    """Read an RFC 3339 time, whose fraction Python takes in six digits only."""
    text = text.replace("Z", "+00:00")
    if "." in text:
        whole, rest = text.split(".", 1)
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{whole}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}"
    return datetime.fromisoformat(text)
