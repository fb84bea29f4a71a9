"""What is sent: text, bytes, files, pieces."""

from __future__ import annotations

from typing import IO, Any, AsyncIterable, AsyncIterator, Iterable, Union

Data = Union[str, bytes, IO[bytes], Iterable[bytes]]
AsyncData = Union[Data, AsyncIterable[bytes]]

PIECE = 64 << 10


def whole(data: AsyncData) -> Union[bytes, None]:
    """Return text and bytes as bytes, and None for what comes in pieces."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return None


def check(data: AsyncData) -> None:
    """Refuse what is none of these, before anything is sent."""
    if whole(data) is None and not any(hasattr(data, name) for name in ("__iter__", "__aiter__", "read")):
        raise TypeError(f"data must be text, bytes, a binary file or pieces of bytes, not {type(data).__name__}")


def exact(data: Union[str, bytes]) -> bytes:
    """Return text or bytes as bytes; anything else is refused."""
    found = whole(data)
    if found is None:
        raise TypeError(f"data must be bytes or text, not {type(data).__name__}")
    return found


async def pieces(data: AsyncData) -> AsyncIterator[bytes]:
    """Cut data into pieces of a moderate size."""
    source: Any = data
    if hasattr(source, "__aiter__"):
        async for item in source:
            for piece in cut(item):
                yield piece
        return
    read = getattr(source, "read1", None) or getattr(source, "read", None)
    if read is None:
        for item in (source,) if whole(source) is not None else source:
            for piece in cut(item):
                yield piece
        return
    while True:
        item = read(PIECE)
        if not item:
            return
        for piece in cut(item):
            yield piece


def cut(item: Union[str, bytes]) -> Iterable[bytes]:
    """Cut what is in memory into pieces; none is empty."""
    data = exact(item)
    for i in range(0, len(data), PIECE):
        yield data[i : i + PIECE]
