"""Anthropic's messages. https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

from typing import Any

from evo.exchange import Reply, Request, Usage
from evo.mutators.agents.providers.base import dig, estimate_usage, settled, texts, whole
from evo.mutators.agents.providers.service import Service

VERSION = "2023-06-01"


class Anthropic(Service):
    path = "/v1/messages"

    def headers(self) -> dict[str, str]:
        return {"x-api-key": self.key, "anthropic-version": VERSION}

    def body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        return {
            "model": self.spec.model, "system": request.system, "messages": messages, "max_tokens": request.max_tokens,
        }  # fmt: skip

    def read(self, data: dict[str, Any], request: Request) -> Reply:
        text = texts(data.get("content"), "text")
        counted = dig(data, "usage")
        cached = whole(counted.get("cache_read_input_tokens"))
        fresh = whole(counted.get("input_tokens")) + whole(counted.get("cache_creation_input_tokens"))
        usage = Usage(fresh + cached, whole(counted.get("output_tokens")), cached)
        usage = usage if usage.total else estimate_usage(request, text)
        reason = data.get("stop_reason")
        finish = "refused" if reason == "refusal" else "length" if reason == "max_tokens" else "stop"
        return settled(text, finish, usage)
