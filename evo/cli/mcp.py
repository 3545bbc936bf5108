"""`evo mcp`: an MCP server for coding agents."""

from __future__ import annotations

import signal

from evo.cli import options
from evo.cli.asking import Cases, Operator, Run


def mcp(
    operator: Operator = "",
    target: options.Target = "auto",
    run: Run = "",
    cases: Cases = None,
    archive: options.Archive = "evo.db",
) -> None:
    """Serve ask and tell to a coding agent over MCP, on standard input and output."""
    from evo import extras
    from evo.errors import UsageError

    try:
        from evo.mcp_server import make_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise UsageError("the MCP server is not installed", fix=extras.install("mcp")) from None
    server = make_server(archive, run=run, operator=operator, target=target, cases=tuple(cases or ()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a thread reads standard input, and an interrupt would wait for it
    server.run()
