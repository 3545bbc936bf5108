"""Hands out the kept answers of `answers/`: a program for `--llm command:`, prompt on stdin, answer on stdout.

It keeps nothing from call to call: which answer fits is read out of the prompt. Files are named TOPIC.KIND.md; a topic
is a direction of the planner's, and is known again by its name or by the idea that its answers begin with. Exit code 1
where no answer fits, which evo takes for a service that failed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from evo.mutators.agents.answers import find_idea, find_list

ANSWERS = Path(__file__).parent / "answers"


def answer(prompt: str, folder: Path = ANSWERS) -> str | None:
    """The kept answer to a prompt; None where there is none."""
    found = re.search(r"You are the (\w+)\.", prompt)
    role, last = found[1] if found else "", prompt.rpartition("\n[user]\n")[2]
    if role == "planner":
        return _plan(prompt, folder)
    if role == "historian":
        return _cited(_read(folder / "all.historian.md") or "", prompt)
    if role == "crossover" and "Read it again" not in last:
        return _read(folder / "all.crossover.md")
    topic = _topic(role, prompt, folder)
    if "Read it again as a strict reviewer" in last:
        mended = "That cannot be used:" in prompt  # what was sent then has been read again already
        return (None if mended else _read(folder / f"{topic}.own-{role}.md")) or "KEEP\n"
    kind = "correction" if "That cannot be used:" in last else role
    return _read(folder / f"{topic}.{kind}.md")


def _plan(prompt: str, folder: Path) -> str | None:
    """The first plan of which no direction is in the prompt yet."""
    for path in sorted(folder.glob("plan-*.planner.md")):
        text = path.read_text("utf-8")
        if not any(f"{item['name']} (" in prompt for item in find_list(text)):
            return text
    return None


def _cited(lessons: str, prompt: str) -> str:
    """Each `<DIRECTION>` is the first candidate that the prompt names under it: other parents give other candidates."""
    for candidate, direction in re.findall(r"^- candidate (\w+) \(direction ([\w-]+);", prompt, re.MULTILINE):
        lessons = lessons.replace(f'"<{direction}>"', f'"{candidate}"')
    return lessons


def _topic(role: str, prompt: str, folder: Path) -> str:
    """By the direction that a writer follows; a reviewer and a repairer are told the idea only."""
    names = [item["name"] for path in sorted(folder.glob("plan-*.planner.md")) for item in find_list(path.read_text())]
    if role == "writer":
        return next((name for name in names if re.search(rf"^{re.escape(name)}: ", prompt, re.MULTILINE)), "")
    ideas = {path: find_idea(path.read_text("utf-8")) for path in sorted(folder.glob("*.md"))}
    return next((path.name.split(".")[0] for path, idea in ideas.items() if len(idea) > 20 and idea in prompt), "")


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


if __name__ == "__main__":
    said = answer(sys.stdin.read())
    if said is None:
        sys.exit("no answer is kept for this prompt")
    sys.stdout.write(said)
