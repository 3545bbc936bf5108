"""From `--llm` to a provider: which class, which key."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import httpx

from evo.errors import UsageError
from evo.mutators.agents.providers.anthropic import Anthropic
from evo.mutators.agents.providers.base import Provider
from evo.mutators.agents.providers.command import Command
from evo.mutators.agents.providers.gemini import Gemini
from evo.mutators.agents.providers.http import Poster
from evo.mutators.agents.providers.keys import NAMES, Keys
from evo.mutators.agents.providers.openai import OpenAiChat, OpenAiResponses
from evo.mutators.agents.providers.service import Service
from evo.mutators.agents.providers.shards import Sharded
from evo.mutators.agents.providers.spec import COMMAND, REPLAY, ModelSpec

CLASSES: dict[str, type[Service]] = {
    "openai-responses": OpenAiResponses, "anthropic": Anthropic, "gemini": Gemini,
}  # fmt: skip
ACCOUNTS = {"openai-responses": "openai"}  # whose keys a provider uses; else its own name's
CALL_S = 600.0
FEW = 64  # requests at once that httpx's own pool is fit for


def connect(limit: int = FEW) -> httpx.AsyncClient:
    """The one client of a run, for so many requests at once: no redirects (a key must not follow one), and time limits
    for every single read. Proxies of the environment are heeded for a `FEW` at most."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(CALL_S, connect=20.0, pool=None),
        transport=Sharded(limit) if limit > FEW else None,
        limits=httpx.Limits(max_connections=FEW, max_keepalive_connections=FEW),
        follow_redirects=False,
    )


def key_for(spec: ModelSpec, keys: Keys) -> str:
    """The key that goes to a model, "" for none. Raises `UsageError` where a service cannot do without."""
    if spec.provider == REPLAY:
        raise UsageError("replay:RUN stands alone", fix="name no other --llm beside it")
    account = ACCOUNTS.get(spec.provider, spec.provider)
    key = keys.get(account)
    if spec.elsewhere:
        return key if _guarded(spec.base_url) else ""  # a key never travels in the clear
    if account in NAMES and not key:
        names = " or ".join(NAMES[account])
        raise UsageError(f"{spec.name} needs a key", fix=f"set {names}, in the environment or in a file .env here")
    return key


def open_provider(spec: ModelSpec, keys: Keys, poster: Poster) -> Provider:
    """Raises as `key_for`."""
    key = key_for(spec, keys)
    if spec.provider == COMMAND:
        return Command(spec, keys.redact, poster.timeout_s)
    return CLASSES.get(spec.provider, OpenAiChat)(spec, key, poster)


def _guarded(url: str) -> bool:
    """Whether what is sent there cannot be read on the way: by TLS, or because it stays on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
