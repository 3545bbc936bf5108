"""Prompts from Jinja2 templates, which a folder of the user's may override file by file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evo.errors import UsageError
from evo.mutators.agents.fence import fence

TEMPLATES = Path(__file__).parent / "templates"
_OTHER_TARGET = {"cpu": "CUDA", "cuda": "the CPU"}


class Prompts:
    """Renders templates. Text of others goes through the filter `fence(title, tokens)`. Raises `UsageError` for a
    folder that is none and for a template that fails."""

    def __init__(self, folder: str = "") -> None:
        if folder and not Path(folder).is_dir():
            raise UsageError(f"there is no folder of prompts {folder!r}", fix="leave it out for evo's own prompts")
        folders = [folder] if folder else []
        self._environment = ImmutableSandboxedEnvironment(
            loader=ChoiceLoader([FileSystemLoader([*folders, TEMPLATES])]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters["fence"] = fence

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        try:
            return self._environment.get_template(f"{name}.md.j2").render(values).strip() + "\n"
        except TemplateError as error:
            raise UsageError(f"the prompt template {name}.md.j2 fails: {error}", fix="correct the template") from error

    def system(self, role: str) -> str:
        return self.render("system", {"role": role})


def manual(target: str) -> str:
    """The description of the genome file, without what another kind of target needs."""
    text = (TEMPLATES / "genome.md").read_text("utf-8")
    other = _OTHER_TARGET["cpu" if target == "cpu" else "cuda"]
    return re.sub(rf"^## evo\.h for {other}\n.*?(?=^## )", "", text, flags=re.MULTILINE | re.DOTALL)
