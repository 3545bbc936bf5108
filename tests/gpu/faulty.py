"""Runs one faulty kernel in this process and prints, as JSON, what the machine made of it: `python faulty.py trap`."""

from __future__ import annotations

import json
import os
import sys

from device_code import FAULTS, load, tensors

from evo.fitness.cuda.machine import CudaMachine
from evo.plan import Launch, LaunchPlan
from evo.target import BufferSpec, Rejected


def main(fault: str) -> None:
    machine = CudaMachine("cuda:0", run_limit_s=1.5)
    (y,) = machine.allocate([BufferSpec("y", "fp32", (256,), "output")])
    machine.zero(y)
    program = load(machine, FAULTS[fault], LaunchPlan((Launch("fault", (1, 1, 1), (1, 1, 1), tensors("y")),)))
    try:
        machine.run(machine.bind(program, {"y": y}))
        verdict: dict[str, object] = {"status": "ok"}
    except Rejected as error:
        verdict = {"status": error.status.value, "fatal": error.fatal, "message": error.message}
    machine.close()
    sys.stdout.write(json.dumps(verdict) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as a worker ends: the driver's own exit would wait for a kernel that hangs


if __name__ == "__main__":
    main(sys.argv[1])
