"""Ask and tell as an MCP server on standard input and output, for coding agents; needs the extra `mcp`.

Every call opens the archive anew, so nothing is held between calls and other processes may use it meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from evo import api
from evo.app.swarm.answers import tell_answer
from evo.app.swarm.asked import answer_json, ask_json
from evo.archive import lessons as memory
from evo.errors import EvoError

INSTRUCTIONS = """evo makes GPU kernels better by evolution; you are its mutation operator. Call `ask` for parents, a
direction and the rules; change the source; hand it in by `tell`; then `wait` for the verdict, read its diagnosis and
go on. Nothing that you send runs on this machine's host: candidates are device code that evo builds, checks and times.
Verdicts come from a run that goes on, or once somebody calls `evo evaluate --pending`."""
WAIT_S = 600.0
PAUSE_S = 0.5
LESSONS_TOKENS = 2000


def make_server(
    archive: str, *, run: str = "", operator: str = "", target: str = "auto", cases: Sequence[str] = ()
) -> MCPServer:
    """A server for one operator and target of an archive. Raises `UsageError` and `ArchiveError` at once where there
    is nothing to serve."""

    @contextmanager
    def desk() -> Iterator[api.Desk]:
        try:
            with api.open(archive, run=run, operator=operator, target=target, cases=cases) as opened:
                yield opened
        except EvoError as error:  # for the agent to read: what is wrong, and what to do
            raise ToolError(str(error)) from None

    with api.open(archive, run=run, operator=operator, target=target, cases=cases):
        pass
    server = MCPServer("evo", instructions=INSTRUCTIONS)
    for tool in (*_readers(desk), *_tellers(desk)):
        server.tool()(tool)
    return server


Opener = Callable[[], Any]


def _readers(desk: Opener) -> list[Callable[..., Any]]:
    def job() -> dict[str, Any]:
        """What is worked on: operator, target, tensors, the cases that count, and the operator's notes."""
        with desk() as opened:
            item = opened.operator
            return {
                "operator": item.name, "target": opened.target.name, "run": opened.run.id, "summary": item.summary,
                "dims": list(item.dims), "cases": list(opened.cases), "notes": item.notes(),
                "tensors": [
                    {"name": t.name, "role": t.role, "dtypes": list(t.dtypes), "shape": list(t.shape),
                     "optional": t.optional} for t in item.tensors
                ],
            }  # fmt: skip

    def ask(parent: str = "") -> dict[str, Any]:
        """The next question: parents with source and times, a direction, and a prompt with all the rules. `parent` is
        the id of a candidate that you would rather work on."""
        with desk() as opened:
            return ask_json(opened.ask(parent=parent))

    def elites(limit: int = 5) -> list[dict[str, Any]]:
        """The best candidates of all runs, best first: id, gene values, times by case. `source` gives the source."""
        with desk() as opened:
            return [
                {"id": e.id, "values": dict(e.values), "cases": {n: _timed(v) for n, v in e.cases.items()}}
                for e in opened.elites(max(1, min(limit, 24)))
            ]

    def source(candidate: str) -> str:
        """A candidate's genome file, by id or its first characters."""
        with desk() as opened:
            return str(opened.archive.candidate(candidate).source)

    def lessons(about: str = "") -> str:
        """What earlier runs learned about this operator and target, a line each, the most fitting first."""
        with desk() as opened, opened.archive.reading() as connection:
            found = memory.relevant(
                connection, opened.operator.name, opened.target.name, about, budget_tokens=LESSONS_TOKENS
            )
            return "\n".join(memory.line(lesson) for lesson in found)

    return [job, ask, elites, source, lessons]


def _tellers(desk: Opener) -> list[Callable[..., Any]]:
    def tell(
        source: str = "",
        edits: str = "",
        values: dict[str, int | str] | None = None,
        parents: list[str] | None = None,
        ask: str = "",
        note: str = "",
        model: str = "",
        suffix: str = "",
    ) -> dict[str, str]:
        """Hand in a candidate: `source` (a whole genome file), `edits` (SEARCH/REPLACE blocks on the first parent), or
        only `values` of its genes. Name the `ask`, or `parents`. `note`: what you changed and what you expect.
        `model`: which model you are. Telling the same again is harmless; a duplicate names what it equals."""
        answer = {
            "source": source, "edits": edits, "values": values, "parents": parents, "ask": ask, "note": note,
            "suffix": suffix, "author": {"kind": "agent", "model": model},
        }  # fmt: skip
        with desk() as opened:
            return tell_answer(opened, answer).plain()

    def diagnosis(candidate: str) -> dict[str, Any]:
        """What a candidate came to so far: state, status, diagnosis with compiler log or first wrong element, times."""
        with desk() as opened:
            return answer_json(opened.answer(candidate))

    async def wait(candidate: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for a candidate's verdict, at most so long; then as `diagnosis`."""
        until = time.monotonic() + max(0.0, min(timeout_s, WAIT_S))
        while True:
            with desk() as opened:
                found = opened.answer(candidate)
            if found.settled or time.monotonic() >= until:
                return answer_json(found)
            await asyncio.sleep(PAUSE_S)

    return [tell, diagnosis, wait]


def _timed(view: api.CaseView) -> dict[str, Any]:
    return {"status": str(view.status), "time_us": view.time_us, "ratio": view.ratio, "light_share": view.light_share}
