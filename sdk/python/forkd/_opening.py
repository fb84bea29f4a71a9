"""Things that are opened."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Coroutine, Generator, Generic, Optional, TypeVar

T = TypeVar("T")


class Opening(Generic[T]):
    """Something that will be there: await it, or use it with "async with".

    Leaving the block closes it, whatever happened in it.
    """

    def __init__(self, opening: Coroutine[Any, Any, T], close: Callable[[T], Awaitable[Any]]):
        self.opening = opening
        self._close = close
        self._opened: Optional[T] = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self.opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self.opening
        return self._opened

    async def __aexit__(self, kind: Any, value: Any, traceback: Any) -> None:
        assert self._opened is not None
        try:
            await self._close(self._opened)
        except Exception:
            # The error of the block, if there is one, is the one to show.
            if kind is None:
                raise
