"""Faults at random moments of real runs: after each one, and after `evo resume`, nothing may be lost or doubled.

    python benchmarks/fault_injection.py --count 500 --seed 1 --out faults.json

Kills, Ctrl-C, a full disk, a file-size limit, an archive locked by another program, a second `evo resume`; and with the
real executor (a share `--real` of the faults) also killed workers and a build cache that vanishes. The same run is hit
and resumed again and again until it ends. Exit code 1 when anything was violated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_audit import audit, filings, newest_run, run_count
from fault_child import BUSY_S, Life, warm

from evo.archive.connect import BUSY_S as REAL_BUSY_S

CASE = "bf16-32x1024"
EVALUATIONS = {True: 60, False: 5}  # of a run, simulated or real
MOMENT_S = {True: 0.35, False: 3.0}  # a fault comes within so many seconds
RUNS_AN_ARCHIVE = 4
TMPFS_BYTES = 48 << 20
LIFE_LIMIT_S = {True: 30.0, False: 300.0}
AT_EXIT = re.compile(r"^interrupted.*\Z", re.DOTALL | re.MULTILINE)  # what Python says of a second Ctrl-C after it
SWALLOWED = re.compile(
    r"^Exception closing connection .*?^KeyboardInterrupt\n", re.DOTALL | re.MULTILINE
)  # SQLAlchemy's
TRACEBACK = re.compile(r"^Traceback|never awaited|Exception ignored", re.MULTILINE)  # a worker's own is indented
CLEAN = {0, 1, 130}  # exit codes of a process that was not killed


class Fault(Exception):
    """The fault could not be placed: the process ended first."""


class World:
    """An archive in a folder of a small disk, its runs, and the process that lives now."""

    def __init__(self, folder: Path, *, simulated: bool, rng: random.Random, disk: bool) -> None:
        self.root, self.simulated, self.rng = folder, simulated, rng
        self.disk, self.cache, self.logs = folder / "disk", folder / "cache", folder / "logs"
        for place in (self.disk, self.cache, self.logs):
            place.mkdir(parents=True)
        self.small = disk and _mount(self.disk)
        self.life: Life | None = None
        self.runs = 0
        self.violations: list[str] = []
        self.audits = 0
        self.filed: Counter[int] = Counter()  # settled proposals by how many evaluations each has; 1 is right
        self._rows: dict[str, str] = {}

    @property
    def archive(self) -> Path:
        return self.disk / "evo.db"

    def ensure(self) -> Life:
        """The living process; a run that is not done is resumed, else a new one begins."""
        if self.life is not None and self.life.alive():
            return self.life
        run, state = newest_run(self.archive)
        if state == "done" and run_count(self.archive) >= RUNS_AN_ARCHIVE:  # more would use all candidates up
            self.filed += filings(self.archive)
            for file in self.disk.glob("evo*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            run, self._rows = "", {}
            (self.logs / "announced").unlink(missing_ok=True)
        if run and state != "done":
            words = ["resume", run, "--archive", str(self.archive)]
        else:
            self.runs += 1
            words = ["run", "-o", "rmsnorm", "-t", "cpu", "--budget", f"evaluations={EVALUATIONS[self.simulated]}",
                     "--seed", str(self.rng.getrandbits(32)), "--archive", str(self.archive)]  # fmt: skip
            words += [] if self.simulated else ["--cases", CASE]
        self.life = Life(words, self.disk, self.logs, self.cache, simulated=self.simulated)
        return self.life

    def wait(self) -> int | None:
        assert self.life is not None
        code = self.life.end(LIFE_LIMIT_S[self.simulated])
        if code is None:
            self.violations.append(f"`evo {' '.join(self.life.words)}` did not end: {self.life.said()[-3000:]}")
        return code

    def check(self) -> None:
        """After a process has ended."""
        assert self.life is not None
        self.audits += 1
        found, self._rows = audit(self.archive, self._rows, self.life.announced(), EVALUATIONS[self.simulated])
        self.violations += found
        said = AT_EXIT.sub("interrupted", SWALLOWED.sub("", self.life.said()))
        if TRACEBACK.search(said):
            self.violations.append(f"traceback: {said[-1500:]}")

    def end(self) -> None:
        """Lets the last run end."""
        for _ in range(20):
            self.ensure()
            code = self.wait()
            self.check()
            if newest_run(self.archive)[1] == "done":
                if code != 0:
                    self.violations.append(f"a run that is done ended with code {code}: {self.life.said()[-800:]}")
                return self._expect_nothing_left()
        self.violations.append(f"the run never ends: {self.life.said()[-800:] if self.life else ''}")

    def _expect_nothing_left(self) -> None:
        """Processes of killed workers end too: those that have our cache folder in their command or environment."""
        time.sleep(1.0)
        for entry in Path("/proc").iterdir():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:  # no process, or just ended
                continue
            if str(self.cache).encode() in text:
                self.violations.append(f"process {entry.name} is left over: {text[:200]!r}")

    def close(self) -> None:
        if self.life is not None and self.life.alive():
            self.life.signal(signal.SIGKILL)
            self.life.end()
        if self.small:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)


def _mount(folder: Path) -> bool:
    """A disk of a few MiB, where this user may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def _expect(world: World, code: int | None, message: str) -> str:
    """The process either said what is wrong and how to go on, or it was not touched by it."""
    assert world.life is not None
    said = world.life.said()
    if code == 0:
        return "survived"
    if code != 1 or "error: " not in said or message not in said or str(world.archive) not in said:
        world.violations.append(f"exit code {code}, wanted 1 and {message!r}: {said[-800:]}")
    if world.life.words[0] == "run" and newest_run(world.archive)[1] == "failed" and "evo resume" not in said:
        world.violations.append(f"no word of `evo resume`: {said[-800:]}")
    return "told"


def _placed(world: World) -> Life:
    """The process, at a random moment of its life."""
    life, until = world.ensure(), time.monotonic() + 60.0
    if not world.simulated and world.rng.random() < 0.7:  # else most of them would hit the long calibration
        while life.alive() and not life.busy() and time.monotonic() < until:
            time.sleep(0.05)
    time.sleep(world.rng.uniform(0.0, MOMENT_S[world.simulated]) * (1 if world.rng.random() < 0.8 else 3))
    if not life.alive():
        raise Fault
    return life


def killed(world: World) -> str:
    _placed(world).signal(signal.SIGKILL)
    world.wait()
    return "killed"


def terminated(world: World) -> str:
    _placed(world).signal(signal.SIGTERM)
    world.wait()
    return "killed"


def interrupted(world: World, times: int = 1) -> str:
    life = _placed(world)
    for _ in range(times):
        life.signal(signal.SIGINT)
        time.sleep(world.rng.uniform(0.0, 0.05))
    code = world.wait()
    if code not in CLEAN:
        world.violations.append(f"exit code {code} after Ctrl-C: {life.said()[-800:]}")
    return "stopped"


def interrupted_twice(world: World) -> str:
    return interrupted(world, 2)


def disk_full(world: World) -> str:
    _placed(world)
    filler = world.disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                pass  # that was the aim
            code = world.wait()
    finally:
        filler.unlink()
    return _expect(world, code, "is full")


def file_limit(world: World) -> str:
    """No file may grow beyond what the archive's log has now: EFBIG, as with some quotas."""
    life = _placed(world)
    log = world.archive.with_name("evo.db-wal")
    size = log.stat().st_size if log.exists() else 0
    try:
        resource.prlimit(life.pid, resource.RLIMIT_FSIZE, (max(65536, size) + 4096, resource.RLIM_INFINITY))
    except ProcessLookupError:
        raise Fault from None
    return _expect(world, world.wait(), "could not be written")


def locked(world: World) -> str:
    """Another program writes to the archive for longer than evo waits."""
    _placed(world)
    other = _lock(world)
    code = world.wait()
    other.close()
    return _expect(world, code, "locked by another process")


def locked_briefly(world: World) -> str:
    life = _placed(world)
    other = _lock(world)
    time.sleep(world.rng.uniform(0.1, 0.6) * (BUSY_S if world.simulated else REAL_BUSY_S / 4))
    other.close()
    time.sleep(0.05)
    if not life.alive() and world.wait() != 0:
        world.violations.append(f"a short lock ended the run: {life.said()[-800:]}")
    return "survived"


def _lock(world: World) -> sqlite3.Connection:
    if not newest_run(world.archive)[0]:
        raise Fault
    other = sqlite3.connect(world.archive, isolation_level=None, timeout=5.0)
    other.execute("BEGIN EXCLUSIVE")
    return other


def resumed_twice(world: World) -> str:
    """Somebody resumes a run that is going on elsewhere: refused, and the first goes on."""
    life = _placed(world)
    run, state = newest_run(world.archive)
    if not run or state != "running" or life.words[0] == "run" and run not in life.announced():
        raise Fault
    logs = world.root / "other"
    logs.mkdir(exist_ok=True)
    words = ("resume", run, "--archive", str(world.archive))
    other = Life(words, world.disk, logs, world.cache, simulated=world.simulated)
    code = other.end(LIFE_LIMIT_S[world.simulated])
    refusals = ("is going on in another process", "has ended")  # the latter while the first one prints its table
    if life.alive() and (code != 2 or not any(words in other.said() for words in refusals)):
        world.violations.append(f"a second resume ended with {code}: {other.said()[-800:]}")
    return "refused" if code == 2 else "too late"


def worker_killed(world: World) -> str:
    """A builder, or the process that owns the device."""
    life = _placed(world)
    found = subprocess.run(["pgrep", "-P", str(life.pid)], capture_output=True, text=True, check=False).stdout.split()
    if not found:
        raise Fault
    try:
        os.kill(int(world.rng.choice(found)), signal.SIGKILL)
    except ProcessLookupError:
        raise Fault from None
    return "killed"


def cache_removed(world: World) -> str:
    """Somebody clears the build cache while it is in use."""
    _placed(world)
    shutil.rmtree(world.cache / "builds-1", ignore_errors=True)
    return "removed"


def cache_unusable(world: World) -> str:
    """No build can be kept any more: the run ends with an error, or with what it has."""
    life = _placed(world)
    aside = world.cache.with_name("aside")
    world.cache.rename(aside)
    world.cache.write_bytes(b"")
    code = world.wait()
    world.cache.unlink()
    aside.rename(world.cache)
    if code not in (0, 1, 2):
        world.violations.append(f"exit code {code} without a cache: {life.said()[-800:]}")
    return "survived" if code == 0 else "told"


SIMULATED: dict[str, Callable[[World], str]] = {
    "main process killed": killed, "main process terminated": terminated, "interrupted": interrupted,
    "interrupted twice": interrupted_twice, "disk full": disk_full, "file size limit": file_limit,
    "archive locked for long": locked, "archive locked briefly": locked_briefly, "resumed twice": resumed_twice,
}  # fmt: skip
REAL = {kind: action for kind, action in SIMULATED.items() if action is not file_limit}  # workers have the limit too
REAL |= {"worker killed": worker_killed, "cache removed": cache_removed, "cache unusable": cache_unusable}
ALIVE = {"survived", "removed", "refused", "too late"}  # outcomes after which the process may go on


def inject(world: World, kind: str, action: Callable[[World], str]) -> str:
    """One fault of this kind, at the first moment that allows it; and a look at what it left behind."""
    for _ in range(60):
        try:
            outcome = action(world)
        except Fault:
            if world.life is not None and not world.life.alive():
                world.wait()
                world.check()
            continue
        if world.life is not None and not world.life.alive():
            world.wait()
            world.check()
        return outcome
    world.violations.append(f"{kind}: no moment for it was found")
    return "none"


def campaign(world: World, kinds: dict[str, Callable[[World], str]], count: int, seed: int, say: str) -> dict[str, Any]:
    """`count` faults one after another in one world; counts by kind and outcome, and violations."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    violations: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        for number in range(count):
            kind = list(kinds)[number % len(kinds)]
            world.rng.seed(f"{seed} {say} {number}")
            counts[kind][inject(world, kind, kinds[kind])] += 1
            violations += [{"kind": kind, "number": number, "what": what} for what in world.violations]
            for what in world.violations:
                print(f"VIOLATION {say} {number} {kind}: {what}", flush=True)
            world.violations.clear()
            if number % 20 == 19:
                print(f"[{time.monotonic() - began:.0f} s] {say}: {number + 1} of {count} faults, {world.runs} runs,"
                      f" {len(violations)} violations", flush=True)  # fmt: skip
        world.end()
        world.filed += filings(world.archive)
        violations += [{"kind": "end", "number": count, "what": what} for what in world.violations]
    finally:
        world.close()
    return {
        "faults": count, "runs": world.runs, "seconds": round(time.monotonic() - began, 1), "kinds": counts,
        "audits": world.audits, "settled_proposals_by_evaluations": world.filed, "violations": violations,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", type=float, default=0.2, help="share of the faults that hit the real executor")
    parser.add_argument("--kinds", nargs="*", choices=[*SIMULATED, *REAL], default=[*SIMULATED, *REAL],
                        metavar="KIND")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("faults.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"count": options.count, "seed": options.seed}
    real = round(options.count * options.real)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder)
        os.environ["TMPDIR"] = name  # device locks of our own: nobody else's timing is waited for
        for say, kinds, count in (("simulated", SIMULATED, options.count - real), ("real", REAL, real)):
            if not count:
                continue
            world = World(folder / say, simulated=say == "simulated", rng=random.Random(), disk=True)
            if not world.small:  # said in the figures: a kind that is not there was not tried
                kinds = {kind: action for kind, action in kinds.items() if action is not disk_full}
            kinds = {kind: action for kind, action in kinds.items() if kind in options.kinds}
            if not kinds:
                parser.error(f"none of {options.kinds} can be tried here")
            report[say] = campaign(world, kinds, count, options.seed, say)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    violations = [v for say in ("simulated", "real") if say in report for v in report[say]["violations"]]
    for violation in violations[:10]:
        print(violation)
    print(f"{options.count} faults, {len(violations)} violations")
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
