"""OpenAI's two interfaces. Chat completions is also what vLLM, Ollama, llama.cpp, OpenRouter and many others speak.

https://platform.openai.com/docs/api-reference/chat and .../responses
"""

from __future__ import annotations

from typing import Any

from evo.exchange import Reply, Request, Usage
from evo.mutators.agents.providers.base import dig, estimate_usage, first, settled, texts, whole
from evo.mutators.agents.providers.service import Service


class OpenAiChat(Service):
    path = "/chat/completions"

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": "system", "content": request.system}]
        messages += [{"role": message.role, "content": message.text} for message in request.messages]
        limit = "max_completion_tokens" if self.spec.base_url.startswith("https://api.openai.com") else "max_tokens"
        return {"model": self.spec.model, "messages": messages, limit: request.max_tokens}

    def read(self, data: dict[str, Any], request: Request) -> Reply:
        choice = first(data.get("choices"))
        message = dig(choice, "message")
        text = texts(message.get("content"))
        refusal = message.get("refusal")
        reason = choice.get("finish_reason")
        counted = dig(data, "usage")
        usage = Usage(
            whole(counted.get("prompt_tokens")),
            whole(counted.get("completion_tokens")),
            whole(dig(counted, "prompt_tokens_details").get("cached_tokens")),
            whole(dig(counted, "completion_tokens_details").get("reasoning_tokens")),
        )
        usage = usage if usage.total else estimate_usage(request, text)
        if refusal or reason == "content_filter":
            return settled(text, "refused", usage, error=str(refusal or "content filter")[:500])
        return settled(text, "length" if reason == "length" else "stop", usage)


class OpenAiResponses(Service):
    path = "/responses"

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        return {
            "model": self.spec.model, "instructions": request.system, "input": messages,
            "max_output_tokens": request.max_tokens, "store": False,
        }  # fmt: skip

    def read(self, data: dict[str, Any], request: Request) -> Reply:
        output = data.get("output")
        parts = [
            part
            for item in (output if isinstance(output, list) else [])
            if dig(item).get("type") == "message" and isinstance(item.get("content"), list)
            for part in item["content"]
        ]
        text = texts(parts, "output_text")
        refusals = [part.get("refusal") for part in parts if dig(part).get("type") == "refusal"]
        reason = dig(data, "incomplete_details").get("reason")
        counted = dig(data, "usage")
        usage = Usage(
            whole(counted.get("input_tokens")),
            whole(counted.get("output_tokens")),
            whole(dig(counted, "input_tokens_details").get("cached_tokens")),
            whole(dig(counted, "output_tokens_details").get("reasoning_tokens")),
        )
        usage = usage if usage.total else estimate_usage(request, text)
        if data.get("status") == "failed":
            return Reply(text, "error", usage, error=str(dig(data, "error").get("message"))[:500])
        if refusals or reason == "content_filter":
            return settled(text, "refused", usage, error=str((refusals or ["content filter"])[0])[:500])
        return settled(text, "length" if reason == "max_output_tokens" else "stop", usage)
