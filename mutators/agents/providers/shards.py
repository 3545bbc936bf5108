"""A transport for a thousand requests at once.

httpx's own looks at every connection of its pool for every request, so its work grows with the square of their number.
Many small pools side by side do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

POOL = 8  # connections of a pool


class Sharded(httpx.AsyncBaseTransport):
    """Gives each request to the pool that has the fewest. Proxies of the environment are not heeded."""

    def __init__(self, limit: int) -> None:
        context = httpx.create_ssl_context()
        limits = httpx.Limits(max_connections=POOL, max_keepalive_connections=POOL)
        count = -(-limit // POOL)
        self._pools = [httpx.AsyncHTTPTransport(verify=context, limits=limits) for _ in range(count)]
        self._busy = [0] * count

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index = min(range(len(self._busy)), key=self._busy.__getitem__)
        self._busy[index] += 1

        def done() -> None:
            self._busy[index] -= 1

        try:
            response = await self._pools[index].handle_async_request(request)
        except BaseException:  # whatever it is, the request is over
            done()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Counted(response.stream, done)
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


class _Counted(httpx.AsyncByteStream):
    """A body that says once when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, done: Callable[[], None]) -> None:
        self._stream = stream
        self._done: Callable[[], None] | None = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._done:
                self._done()
                self._done = None
