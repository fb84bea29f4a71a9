"""What is sent: text, bytes, files, pieces."""

from __future__ import annotations

from typing import IO, Iterable, Iterator, Union

Data = Union[str, bytes, IO[bytes], Iterable[bytes]]

PIECE = 32 << 10


def pieces_of(data: Data) -> Iterator[bytes]:
    """Cut data into pieces of a moderate size."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        for i in range(0, len(data), PIECE):
            yield bytes(data[i : i + PIECE])
        return
    read = getattr(data, "read1", None) or getattr(data, "read", None)
    if read is None:
        for piece in data:  # type: ignore[union-attr]
            yield from pieces_of(piece)
        return
    while True:
        piece = read(PIECE)
        if not piece:
            return
        yield piece.encode() if isinstance(piece, str) else bytes(piece)
