"""How to get what the core install leaves out."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def install(extra: str) -> str:
    """The command that adds an extra: with the pinned versions where this evo runs from a clone."""
    if (ROOT / "constraints.txt").is_file():
        return f"in {ROOT}: pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install 'evo-kernels[{extra}]'"
