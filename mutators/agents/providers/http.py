"""One POST of JSON with what real services need: time limits, retries with jitter, Retry-After, a limit of size."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from evo.mutators.agents.providers.base import ANSWER_BYTES
from evo.mutators.agents.providers.keys import Redactor

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
NO_QUOTA = ("insufficient_quota", "billing_hard_limit")  # a 429 that no waiting ends
SHOWN = 500  # characters of an error body that are kept
_NO_STREAM = httpx.ByteStream(b"")  # in place of one that holds its response: a cycle that only the collector frees


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: nothing came; `why` then says so. `data` is None where the body is no JSON object."""

    status: int
    data: dict[str, Any] | None
    why: str = ""
    attempts: int = 1


@dataclass(frozen=True)
class Poster:
    """Posts over the injected client, which it neither opens nor closes. Every text that it returns is redacted."""

    client: httpx.AsyncClient
    redact: Redactor
    attempts: int = 6
    timeout_s: float = 600.0  # of all attempts of one call together, with the pauses
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    rng: random.Random = field(default_factory=random.Random)  # jitter only: no decision depends on it
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def post(self, url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
        """Never raises for what the network or the service does."""
        data, end = json.dumps(body).encode(), time.monotonic() + self.timeout_s
        answer = Answer(0, None, "nothing was sent")
        for attempt in range(1, self.attempts + 1):
            answer, wait_s = await self._once(url, headers, data, end, attempt)
            if wait_s is None or attempt == self.attempts:
                return answer
            pause = wait_s or self.rng.uniform(0.5, 1.0) * min(
                self.longest_pause_s, self.first_pause_s * 2 ** (attempt - 1)
            )
            if time.monotonic() + pause >= end:
                return Answer(
                    answer.status, answer.data, f"{answer.why}; a retry in {pause:.0f} s is too late", attempt
                )
            await self.sleep(pause)
        return answer

    async def _once(
        self, url: str, headers: Mapping[str, str], data: bytes, end: float, attempt: int
    ) -> tuple[Answer, float | None]:
        """The answer, and how long to wait before the next attempt: None for no other, 0 for as long as usual."""
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                async with self.client.stream("POST", url, headers=_headers(headers), content=data) as response:
                    body = await _read(response)
            response.stream = _NO_STREAM
        except TimeoutError:
            return Answer(0, None, f"no answer within {self.timeout_s:.0f} s", attempt), None
        except httpx.TransportError as error:  # refused, cut off, too slow, not HTTP
            return Answer(0, None, self.redact(f"{type(error).__name__}: {error}")[:SHOWN], attempt), 0.0
        except (httpx.InvalidURL, httpx.StreamError, httpx.DecodingError) as error:
            return Answer(0, None, self.redact(f"{type(error).__name__}: {error}")[:SHOWN], attempt), None
        if body is None:
            return Answer(response.status_code, None, f"the answer is over {ANSWER_BYTES >> 20} MiB", attempt), None
        text = self.redact(body.decode("utf-8", "replace"))
        parsed = _object(text)
        if response.status_code == 200:
            return Answer(200, parsed, "" if parsed is not None else f"no JSON: {text[:SHOWN]!r}", attempt), None
        why = f"HTTP {response.status_code}: {_message(parsed) or text[:SHOWN]}"[:SHOWN]
        answer = Answer(response.status_code, parsed, why, attempt)
        if response.status_code not in RETRIED or any(word in text for word in NO_QUOTA):
            return answer, None
        return answer, retry_after_s(response.headers)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {"content-type": "application/json", "accept-encoding": "identity", **headers}


async def _read(response: httpx.Response) -> bytes | None:
    """The body; None when it is too long, which closes the connection."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > ANSWER_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _message(data: Mapping[str, Any] | None) -> str:
    """What a service says of an error; they agree on {"error": {"message": ...}} and little else."""
    error = (data or {}).get("error")
    said = error.get("message") if isinstance(error, dict) else error
    return said if isinstance(said, str) else ""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that the service asks to wait (a number of them, or a date); 0 where it says nothing."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            value = float(headers.get(name, ""))
        except ValueError:
            continue
        if 0 <= value < float("inf"):
            return value * scale
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
