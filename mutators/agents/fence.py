"""Text of others inside a prompt: marked off by delimiters that it cannot contain, cleaned, and cut to a budget."""

from __future__ import annotations

import hashlib
import re

from evo.mutators.agents.providers.base import CHARACTERS_PER_TOKEN

# Control characters, and those that change the reading direction or are not seen at all.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def fence(text: str, title: str, tokens: int = 4000) -> str:
    """`text` as evidence under a title. The delimiter is taken from the text's own hash, so that equal evidence gives
    equal prompts and no author can foresee it while writing."""
    body = clip(clean(text), tokens)
    number = 0
    while True:
        mark = hashlib.sha256(f"{number}\0{title}\0{body}".encode()).hexdigest()[:16]
        if mark not in body:
            break
        number += 1
    return f"[[evidence {mark}: {title}]]\n{body}\n[[end of evidence {mark}]]"


def clean(text: str) -> str:
    """Without what is not seen; line ends as newlines."""
    return _UNSEEN.sub("\ufffd", text.replace("\r\n", "\n")).strip("\n")


def clip(text: str, tokens: int) -> str:
    """At most about so many tokens: the beginning and the end, with how much was left out between them."""
    limit = int(tokens * CHARACTERS_PER_TOKEN)
    if len(text) <= limit:
        return text
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"
