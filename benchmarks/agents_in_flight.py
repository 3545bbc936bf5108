"""Many agents at once against a stand-in service on the loopback: what the orchestrator itself costs.

The service runs in another process. It answers after delays and with faults drawn as real ones are: 429 with a pause
asked for, 500, connections that are cut, answers that drip. Each answer carries when it was sent off, so that what evo
adds (from the last byte on the wire to the reply in the job's hands) is told from what the service took.

    python benchmarks/agents_in_flight.py --agents 1000 --calls 5000 --out agents_in_flight.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from llm_server import Answer, LlmServer, Seen, chat

from evo.archive import Archive, RunRecord
from evo.archive.exchanges import exchanges, keep_turn
from evo.exchange import Exchange, Message, Request
from evo.ids import new_id
from evo.mutators.agents.collector import rare_collections
from evo.mutators.agents.desk import Call, LiveDesk, Model
from evo.mutators.agents.prices import Price
from evo.mutators.agents.providers import connect, open_provider, parse_llm
from evo.mutators.agents.providers.http import Poster
from evo.mutators.agents.providers.keys import Keys
from evo.mutators.agents.purse import Purse

GOAL = {"cores": 1.0, "resident_mib": 500.0, "added_p99_ms": 50.0}
PROMPT = "What limits this kernel? " * 800  # 20 KB, as prompts are
FLUSH_S = 0.25  # as the loop's turn
PROBE_S = 0.005  # between two looks at how late the event loop is


def behaviour(seed: int, delay_s: float) -> Any:
    """Log-normal delays about `delay_s`; of a hundred requests two get 429, two 500, one is cut, one drips."""
    rng = random.Random(seed)

    def answer(seen: Seen) -> Answer:
        wait_s = min(10 * delay_s, rng.lognormvariate(0.0, 0.7) * delay_s)
        kind = rng.random()
        if kind < 0.02:
            return Answer({"error": {"message": "slow down"}}, 429, {"retry-after": f"{delay_s:.2f}"}, wait_s / 10)
        if kind < 0.04:
            return Answer("<html>busy</html>", 500, delay_s=wait_s / 10)
        if kind < 0.05:
            return chat("x" * 4000, delay_s=wait_s / 2, cut=rng.choice((0, 50)))
        label = seen.body["messages"][-1]["content"][:40].split()[0]
        text = f"{label} " + "y" * rng.randrange(200, 8000)
        return chat(text, (len(PROMPT) // 4, len(text) // 4), delay_s=wait_s, drip_s=0.02 if kind > 0.99 else 0.0)

    return answer


def serve(seed: int, delay_s: float) -> None:
    """The other process: prints the URL, and when told so the time each answer was sent."""
    with LlmServer(behaviour(seed, delay_s)) as server:
        print(server.url, flush=True)
        sys.stdin.readline()
        print(json.dumps(server.sent), flush=True)


async def drive(url: str, agents: int, calls: int, ramp_s: float, archive: Archive, run: str) -> dict[str, Any]:
    """`agents` jobs at a time, started one after another within `ramp_s`, until there were `calls` of them;
    exchanges go to the archive as in a run."""
    filed: list[Exchange] = []
    replied: dict[str, float] = {}
    client, keys = connect(agents), Keys({"OPENAI_API_KEY": "sk-of-the-benchmark"})
    poster = Poster(client, keys.redact, first_pause_s=0.1)
    model = Model(open_provider(parse_llm(f"openai:m@{url}"), keys, poster), Price(1, 2, 1), Price(1, 2, 1))
    desk = LiveDesk(run, {model.name: model}, Purse(), keys.redact, filed.append)
    todo = iter(range(1, calls + 1))
    kept_ms: list[float] = []
    late_ms: list[float] = []
    finishes: Counter[str] = Counter()
    most = 0
    flying = 0

    async def agent(index: int) -> None:
        nonlocal most, flying
        await asyncio.sleep(index / agents * ramp_s)  # a search starts its jobs one after another
        for number in todo:
            flying += 1
            most = max(most, flying)
            request = Request("You are a benchmark.", (Message("user", f"job-{number} {PROMPT}"),), 4096)
            reply, _ = await desk.ask(Call(number, 1, "writer", model.name), request)
            replied[f"job-{number}"] = time.monotonic()
            flying -= 1
            finishes[reply.finish] += 1
            if reply.finish == "stop" and not reply.text.startswith(f"job-{number} "):
                finishes["mixed up"] += 1

    async def keep() -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            drained, filed[:] = list(filed), []
            began = time.perf_counter()
            await asyncio.to_thread(keep_turn, archive, run, [], drained)  # as the loop does
            kept_ms.append(1e3 * (time.perf_counter() - began))

    async def probe() -> None:
        while True:
            due = time.perf_counter() + PROBE_S
            await asyncio.sleep(PROBE_S)
            late_ms.append(1e3 * (time.perf_counter() - due))

    keeper, prober = asyncio.create_task(keep()), asyncio.create_task(probe())
    start, processor_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(agent(index) for index in range(agents)))
    seconds, processor_s = time.perf_counter() - start, time.process_time() - processor_s
    keeper.cancel()
    prober.cancel()
    await asyncio.gather(keeper, prober, return_exceptions=True)
    keep_turn(archive, run, [], filed)
    await client.aclose()
    return {
        "seconds": seconds, "processor_s": processor_s, "most_in_flight": most, "finishes": dict(finishes),
        "replied": replied, "longest_filing_ms": max(kept_ms, default=0.0),
        "loop_late_p99_ms": quantile(late_ms, 0.99), "loop_late_most_ms": max(late_ms, default=0.0),
    }  # fmt: skip


def quantile(found: list[float], share: float) -> float:
    return sorted(found)[int(share * (len(found) - 1))] if found else 0.0


def measure(agents: int, calls: int, delay_s: float, seed: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "--serve", "--delay", str(delay_s), "--seed", str(seed)]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    run, load = new_id(), os.getloadavg()[0]
    try:
        url = server.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as folder, Archive.open(str(Path(folder) / "evo.db")) as archive:
            archive.start_run(RunRecord(run, "none", "cpu", "", "", 0, "", (), "", "", time.time()))
            with rare_collections():  # as a run with agents does
                got = asyncio.run(drive(url, agents, calls, delay_s, archive, run))
            kept = Counter((exchange.job, exchange.step) for exchange in exchanges(archive, run))
        server.stdin.write("\n")
        server.stdin.flush()
        sent = json.loads(server.stdout.readline())
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()
    replied = got.pop("replied")
    added = [1e3 * (replied[label] - sent[label]) for label in replied if label in sent]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return {
        "agents": agents, "calls": calls, "delay_s": delay_s, **got,
        "cores": got["processor_s"] / got["seconds"], "resident_mib": peak,
        "added_p50_ms": quantile(added, 0.5), "added_p99_ms": quantile(added, 0.99), "added_most_ms": max(added),
        "lost": calls - len(kept), "doubled": sum(count - 1 for count in kept.values()), "goal": GOAL,
        "machine_cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0],
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    Console().print(
        f"{result['calls']} calls, {result['most_in_flight']} in flight at most, in {result['seconds']:.1f} s:"
        f" {result['cores']:.2f} cores (goal {GOAL['cores']:g}), {result['resident_mib']:.0f} MiB"
        f" (goal {GOAL['resident_mib']:g}), added latency {result['added_p50_ms']:.1f} ms median,"
        f" {result['added_p99_ms']:.1f} ms p99 (goal {GOAL['added_p99_ms']:g}); {result['lost']} lost,"
        f" {result['doubled']} doubled; a filing took {result['longest_filing_ms']:.0f} ms at most, the event loop was"
        f" {result['loop_late_p99_ms']:.1f} ms late (p99), {result['loop_late_most_ms']:.0f} ms at most;"
        f" load {result['load_before']:.1f} before, {result['load_after']:.1f} after; {result['finishes']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000, help="in flight at a time")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--delay", type=float, default=8.0, help="median time of an answer, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.seed, options.delay)
        return
    result = measure(options.agents, options.calls, options.delay, options.seed)
    show(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
