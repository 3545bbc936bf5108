"""What `--llm` takes: provider:model[@base_url][*weight]."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from evo.errors import UnknownNameError, UsageError

# Where each service is, unless the user says otherwise.
BASE_URLS = {
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
    "openrouter": "https://openrouter.ai/api/v1",
    "ollama": "http://localhost:11434/v1",
    "vllm": "http://localhost:8000/v1",
    "llamacpp": "http://localhost:8080/v1",
}
COMMAND, REPLAY = "command", "replay"
EXAMPLE = (
    "write for example --llm anthropic:MODEL, --llm openai:MODEL@http://localhost:8000/v1 or --llm 'command:PROGRAM'"
)
_WEIGHT = re.compile(r"\*(\d+(?:\.\d+)?)$")
_BASE = re.compile(r"@(https?://\S+)$")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model; `name` is what the archive and the report call it."""

    provider: str
    model: str
    base_url: str = ""  # "" for a command
    weight: float = 1.0
    elsewhere: bool = False  # whether the user named the base URL

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}" + (f"@{self.base_url}" if self.elsewhere else "")


def parse_llm(text: str) -> ModelSpec:
    """Raises `UsageError` (unknown provider, no model, a URL that holds credentials)."""
    rest, weight = text.strip(), 1.0
    if match := _WEIGHT.search(rest):
        rest, weight = rest[: match.start()], float(match[1])
        if weight <= 0:
            raise UsageError(f"--llm {text!r}: the weight is not above zero", fix="leave the model out instead")
    provider, colon, model = rest.partition(":")
    known = [*BASE_URLS, COMMAND, REPLAY]
    if provider not in known:
        raise UnknownNameError("provider", provider, known, fix=EXAMPLE)
    if not colon or not model.strip():
        raise UsageError(f"--llm {text!r} names no model", fix=EXAMPLE)
    if provider in (COMMAND, REPLAY):
        _split(model, text)
        return ModelSpec(provider, model.strip(), "", weight)
    base, elsewhere = BASE_URLS[provider], False
    if match := _BASE.search(model):
        model, base, elsewhere = model[: match.start()], _checked(match[1].rstrip("/")), True
    if not model or not model.isprintable() or " " in model:
        raise UsageError(f"--llm {text!r} names no model", fix=EXAMPLE)
    return ModelSpec(provider, model, base, weight, elsewhere)


def _split(command: str, text: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--llm {text!r}: {error}", fix="quote its words as for a shell") from None


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the base URL {url!r} is none: {error}", fix=EXAMPLE) from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "a base URL holds no user name, password, query or fragment: it would be kept in the archive",
            fix="give the key by the environment, for example OPENAI_API_KEY",
        )
    if not parts.hostname or port == 0:
        raise UsageError(f"the base URL {url!r} has no host", fix=EXAMPLE)
    return url
