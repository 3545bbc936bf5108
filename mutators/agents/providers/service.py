"""What the HTTP services share: a call, and what to do when a model refuses a parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evo.exchange import Reply, Request
from evo.mutators.agents.providers.base import estimate_usage
from evo.mutators.agents.providers.http import Answer, Poster
from evo.mutators.agents.providers.spec import ModelSpec

LIMITS = ("max_tokens", "max_completion_tokens")


class Service:
    """One model of an HTTP service. Subclasses say where, how to ask and how to read the answer.

    Reasoning models refuse a temperature, and servers differ in what they call the limit of the answer. What a model
    refused once is not tried again.
    """

    path = ""

    def __init__(self, spec: ModelSpec, key: str, poster: Poster) -> None:
        self.spec = spec
        self.key = key
        self._poster = poster
        self._no_temperature = False
        self._limit = ""  # the limit's name, once a server has refused the other

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def url(self) -> str:
        return f"{self.spec.base_url}{self.path}"

    def headers(self) -> dict[str, str]:
        raise NotImplementedError

    def body(self, request: Request) -> dict[str, Any]:
        raise NotImplementedError

    def read(self, data: dict[str, Any], request: Request) -> Reply:
        raise NotImplementedError

    def with_temperature(self, body: dict[str, Any], temperature: float) -> None:
        body["temperature"] = temperature

    async def complete(self, request: Request) -> Reply:
        attempts = 0
        while True:
            answer = await self._poster.post(self.url, self.headers(), self._fitted(request))
            attempts += answer.attempts
            if not self._adapted(answer, request):
                break
        if answer.status == 200 and answer.data is not None:
            reply = self.read(answer.data, request)
            return replace(reply, text=self._clean(reply.text), error=self._clean(reply.error), attempts=attempts)
        usage = estimate_usage(request, "") if answer.status in (0, 200) else None  # it may have been worked on
        reply = Reply("", "error", attempts=attempts, error=answer.why)
        return replace(reply, usage=usage) if usage else reply

    def _clean(self, text: str) -> str:
        """JSON can escape a key, and hold halves of characters, which no UTF-8 has."""
        return self._poster.redact(text.encode("utf-8", "replace").decode())

    def _fitted(self, request: Request) -> dict[str, Any]:
        body = self.body(request)
        if request.temperature is not None and not self._no_temperature:
            self.with_temperature(body, request.temperature)
        for name in LIMITS:
            if self._limit and name in body and name != self._limit:
                body[self._limit] = body.pop(name)
        return body

    def _adapted(self, answer: Answer, request: Request) -> bool:
        """Whether a refusal was understood, so that the same request is worth another try; at most two are."""
        if answer.status != 400:
            return False
        why = answer.why.lower()
        if "temperature" in why and request.temperature is not None and not self._no_temperature:
            self._no_temperature = True
            return True
        used = next((name for name in LIMITS if name in self._fitted(request)), "")
        if not self._limit and used and used in why:
            self._limit = next(name for name in LIMITS if name != used)
            return True
        return False
