"""SKILL.md says nothing that is not so: its commands parse, and the names in it exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from evo.cli.root import app

ROOT = Path(__file__).parent.parent
SKILL = (ROOT / "SKILL.md").read_text()
COMMANDS = sorted(
    {*re.findall(r"^ {4,}(evo [^\n]+)$", SKILL, re.MULTILINE), *re.findall(r"`(evo [a-z][^`\n]*)`", SKILL)}
)


def test_there_are_commands_of_every_step() -> None:
    verbs = {command.split()[1] for command in COMMANDS}
    assert verbs >= {"ask", "check", "tell", "evaluate", "archive", "mcp", "genes", "status", "inject", "ban", "stop"}


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line: str) -> None:
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    context = command.make_context("evo", [words[0], "--help-is-not-asked"], resilient_parsing=True)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    command.make_context(str(command.name), words, parent=context, resilient_parsing=not words)


def test_links_and_paths_exist() -> None:
    assert [path for path in re.findall(r"`(docs/[\w./-]+)`", SKILL) if not (ROOT / path).exists()] == []
