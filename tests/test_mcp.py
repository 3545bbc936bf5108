"""The MCP server, spoken to by a real client: in this process, and as a process of its own over standard input."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from evo.errors import UsageError
from evo.mcp_server import make_server
from evo.operators.rmsnorm import RmsNorm

CASE = "bf16-32x1024"
PLAIN = RmsNorm().seeds("cpu")[0].read_text()
MINE = PLAIN.replace('species  = "plain"', 'species = "mine"')
TOOLS = ["job", "ask", "elites", "source", "lessons", "tell", "diagnosis", "wait"]


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The tool's answer; a text where it says what is wrong."""
    result: Any = await client.call_tool(tool, arguments)
    text = "".join(part.text for part in result.content)
    if result.is_error:
        return f"error: {text}"
    found = result.structured_content
    return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found


def talk(server: Any, conversation: Callable[[Client], Awaitable[None]]) -> None:
    async def go() -> None:
        async with Client(server, read_timeout_seconds=30) as client:
            await conversation(client)

    asyncio.run(go())


def test_a_whole_conversation(tmp_path: Path) -> None:
    server = make_server(str(tmp_path / "evo.db"), operator="rmsnorm", target="cpu", cases=(CASE,))

    async def conversation(client: Client) -> None:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == TOOLS
        assert all(tool.description for tool in listed.tools)
        job = await call(client, "job")
        assert (job["operator"], job["target"], job["cases"]) == ("rmsnorm", "cpu", [CASE])
        question = await call(client, "ask")
        parent = question["parents"][0]
        assert (question["kind"], await call(client, "source", candidate=parent["id"][:12])) == (
            "mutation", parent["source"]
        )  # fmt: skip
        told = await call(client, "tell", source=MINE, ask=question["ask"], suffix=".cpp", note="n", model="some-model")
        assert told["state"] == "pending"
        assert (
            await call(client, "tell", source=MINE, ask=question["ask"], suffix=".cpp", note="n", model="some-model")
            == told
        )
        assert (await call(client, "wait", candidate=told["candidate"], timeout_s=0))["state"] == "pending"
        assert (await call(client, "diagnosis", candidate=told["candidate"]))["candidate"] == told["candidate"]
        assert await call(client, "elites") == []
        assert await call(client, "lessons") == ""

    talk(server, conversation)


def test_what_is_wrong_is_said_to_the_agent(tmp_path: Path) -> None:
    server = make_server(str(tmp_path / "evo.db"), operator="rmsnorm", target="cpu")

    async def conversation(client: Client) -> None:
        assert "no header" in await call(client, "tell", source="int x;")
        assert "needs a parent" in await call(client, "tell", values={"ROWS": 4})
        assert "unknown candidate id" in await call(client, "diagnosis", candidate="ffff")

    talk(server, conversation)
    with pytest.raises(UsageError, match="unknown operator"):
        make_server(str(tmp_path / "evo.db"), operator="nonsense")


def test_as_a_process_over_standard_input(tmp_path: Path) -> None:
    words = ["-m", "evo", "mcp", "-o", "rmsnorm", "-t", "cpu", "--cases", CASE, "--archive", str(tmp_path / "evo.db")]

    async def conversation(client: Client) -> None:
        assert (await call(client, "job"))["operator"] == "rmsnorm"
        told = await call(client, "tell", source=MINE, suffix=".cpp")
        assert json.loads(json.dumps(told))["state"] == "pending"

    talk(StdioServerParameters(command=sys.executable, args=words, cwd=tmp_path), conversation)


def test_sigterm_ends_the_server_at_once(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    command = [sys.executable, "-m", "evo", "mcp", "--operator", "rmsnorm", "--target", "cpu"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(request), file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline())["id"] == 1
        process.terminate()
        try:
            assert process.wait(10) == -signal.SIGTERM
        finally:
            process.kill()
