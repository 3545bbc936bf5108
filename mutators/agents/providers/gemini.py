"""Gemini's generateContent. https://ai.google.dev/api/generate-content"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from evo.exchange import Reply, Request, Usage
from evo.mutators.agents.providers.base import dig, estimate_usage, first, settled, texts, whole
from evo.mutators.agents.providers.service import Service

FINISHED = frozenset({"STOP", "MAX_TOKENS", "", None})


class Gemini(Service):
    @property
    def url(self) -> str:
        return f"{self.spec.base_url}/models/{quote(self.spec.model, safe='')}:generateContent"

    def headers(self) -> dict[str, str]:
        return {"x-goog-api-key": self.key} if self.key else {}  # never in the URL, which is logged

    def body(self, request: Request) -> dict[str, Any]:
        roles = {"user": "user", "assistant": "model"}
        contents = [{"role": roles[message.role], "parts": [{"text": message.text}]} for message in request.messages]
        return {
            "systemInstruction": {"parts": [{"text": request.system}]},
            "contents": contents,
            "generationConfig": {"maxOutputTokens": request.max_tokens},
        }

    def with_temperature(self, body: dict[str, Any], temperature: float) -> None:
        body["generationConfig"]["temperature"] = temperature

    def read(self, data: dict[str, Any], request: Request) -> Reply:
        candidate = first(data.get("candidates"))
        text = texts(dig(candidate, "content").get("parts"))
        counted = dig(data, "usageMetadata")
        thoughts = whole(counted.get("thoughtsTokenCount"))
        usage = Usage(
            whole(counted.get("promptTokenCount")),
            whole(counted.get("candidatesTokenCount")) + thoughts,
            whole(counted.get("cachedContentTokenCount")),
            thoughts,
        )
        usage = usage if usage.total else estimate_usage(request, text)
        blocked = dig(data, "promptFeedback").get("blockReason")
        reason = candidate.get("finishReason")
        if blocked or reason not in FINISHED:
            return settled(text, "refused", usage, error=str(blocked or reason)[:500])
        return settled(text, "length" if reason == "MAX_TOKENS" else "stop", usage)
