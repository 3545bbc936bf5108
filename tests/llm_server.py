"""A stand-in for services of language models: a real HTTP server on the loopback, which answers as a function says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """`cut`: bytes of the body after which the connection is cut. `drip_s`: pause before each of eight parts."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0
    cut: int | None = None

    def data(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


Behaviour = Callable[[Seen], Answer]


def chat(text: str, tokens: tuple[int, int] = (100, 20), finish: str = "stop", **more: Any) -> Answer:
    """As OpenAI's chat completions answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return Answer({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}, **more)


class LlmServer:
    """Serves in a thread of its own; `seen` holds all requests in order of arrival."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: list[Seen] = []
        self.sent: dict[str, float] = {}  # when an answer was sent, by the first word of its prompt (monotonic)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._end: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        seen = Seen(head[0].split(" ")[1], headers, body)
        self.seen.append(seen)
        answer = self.behaviour(seen)
        await asyncio.sleep(answer.delay_s)
        data = answer.data()
        if answer.cut == 0:
            writer.transport.abort()
            return False
        more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
            f"{more}\r\n".encode("latin-1")
        )
        if answer.cut is not None:
            writer.write(data[: answer.cut])
            await writer.drain()
            writer.transport.abort()
            return False
        step = max(1, len(data) // 8) if answer.drip_s else max(1, len(data))
        for at in range(0, len(data), step):
            await asyncio.sleep(answer.drip_s)
            writer.write(data[at : at + step])
            if at + step >= len(data):
                self._note(seen)
            await writer.drain()
        return True

    def _note(self, seen: Seen) -> None:
        messages = seen.body.get("messages")
        if messages:
            self.sent[str(messages[-1]["content"])[:40].split(" ")[0]] = time.monotonic()
