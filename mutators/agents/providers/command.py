"""A program as a provider: the prompt on its standard input, the answer on its standard output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import tempfile

from evo.exchange import Reply, Request
from evo.mutators.agents.providers.base import ANSWER_BYTES, estimate_usage
from evo.mutators.agents.providers.keys import Redactor
from evo.mutators.agents.providers.spec import ModelSpec

POLL_S = 0.02
TAIL = 500  # characters of standard error that an error repeats


class Command:
    """Runs without a shell, in an empty folder of its own and in a process group that is killed when the call ends."""

    def __init__(self, spec: ModelSpec, redact: Redactor, timeout_s: float) -> None:
        self.spec = spec
        self._words = shlex.split(spec.model)
        self._redact = redact
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self.spec.name

    async def complete(self, request: Request) -> Reply:
        with tempfile.TemporaryDirectory(prefix="evo-agent-", ignore_cleanup_errors=True) as folder:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                return Reply("", "error", error=f"{self._words[0]} cannot be run: {error.strerror or error}")
            try:
                return await self._talk(process, request)
            finally:
                _kill(process.pid)  # what it left behind too
                await process.wait()

    async def _talk(self, process: asyncio.subprocess.Process, request: Request) -> Reply:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            async with asyncio.timeout(self._timeout_s):
                (answer, over), (complaint, _), _, code = await asyncio.gather(
                    _read(process.stdout, process.pid),
                    _read(process.stderr, process.pid),
                    _write(process.stdin, prompt_text(request)),
                    _ended(process),
                )
        except TimeoutError:
            return Reply("", "error", estimate_usage(request, ""), error=f"no answer within {self._timeout_s:g} s")
        text = self._redact(answer.decode("utf-8", "replace"))
        usage = estimate_usage(request, text)
        if over:
            return Reply("", "error", usage, error=f"the answer is over {ANSWER_BYTES >> 20} MiB")
        if code:
            said = self._redact(complaint.decode("utf-8", "replace")).strip()[-TAIL:]
            return Reply("", "error", usage, error=f"exit code {code}" + (f": {said}" if said else ""))
        return Reply(text, "stop" if text.strip() else "empty", usage)


def prompt_text(request: Request) -> str:
    """A request as one text, for programs that take one."""
    if len(request.messages) == 1:
        return f"{request.system}\n\n{request.messages[0].text}\n"
    turns = [f"[{message.role}]\n{message.text}" for message in request.messages]
    return "\n\n".join([request.system, *turns]) + "\n"


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit code; what the program left running is killed then, so that nothing holds its pipes open."""
    while process.returncode is None:  # `wait` would wait for the pipes too
        await asyncio.sleep(POLL_S)
    _kill(process.pid)
    return process.returncode


async def _write(stream: asyncio.StreamWriter, text: str) -> None:
    with contextlib.suppress(ConnectionError):  # it need not read to the end
        stream.write(text.encode("utf-8", "replace"))
        await stream.drain()
    stream.close()
    with contextlib.suppress(ConnectionError):
        await stream.wait_closed()


async def _read(stream: asyncio.StreamReader, group: int) -> tuple[bytes, bool]:
    """All of it, and whether it is over the limit: the process group is then killed at once."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(1 << 16):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES:
            _kill(group)
            return b"", True
    return b"".join(parts), False


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
