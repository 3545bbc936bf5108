"""Keys: found in the environment or in `.env`, held in one place, and taken out of every text that leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from evo.errors import UsageError

NAMES: Mapping[str, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY",),
}
SHORTEST = 8  # characters; a shorter text is no secret, and replacing it would garble everything


def read_env_file(path: Path) -> dict[str, str]:
    """`NAME=value` lines of a `.env` file, with or without `export` and quotes; {} where there is none."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if quoted else value.partition(" #")[0].strip()
    return found


class Keys:
    """The keys of the services. What the environment has goes before what the file has."""

    def __init__(self, environment: Mapping[str, str], file: Path | None = None) -> None:
        given = read_env_file(file) if file else {}
        self._found: dict[str, str] = {}
        for names in NAMES.values():
            for name in names:
                value = (environment.get(name) or given.get(name) or "").strip()
                if value:
                    self._found[name] = _printable(name, value)
        self.redact = Redactor(self._found.values())

    def get(self, service: str) -> str:
        """The service's key, "" where there is none."""
        return next((self._found[name] for name in NAMES.get(service, ()) if name in self._found), "")

    def __repr__(self) -> str:
        return f"Keys({', '.join(sorted(self._found))})"


def _printable(name: str, value: str) -> str:
    """What an HTTP header can hold; an error of the HTTP library would repeat the value."""
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise UsageError(f"the value of {name} is no key: it has blanks or odd characters", fix="copy the key again")
    return value


class Redactor:
    """Replaces every secret, also where it is JSON-escaped or percent-encoded."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= SHORTEST:
                forms |= {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, "[key]")
        return text
