"""`analyzer mcp`: server of the Model Context Protocol, so that an AI agent can read runs and
reports.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import wattline_analyzer
from wattline.command_line import missing_package, with_option_groups
from wattline_analyzer.core.options import ConnectionOptions
from wattline_analyzer.core.printing import exit_with_error

COMMAND = {
    "name": "mcp",
    "help": "Serve read-only tools to an AI agent (MCP).",
    "group": "Report",
}


@with_option_groups
def mcp_command(*, connection: ConnectionOptions) -> None:
    """Serve read-only tools to an AI agent on stdin and stdout (MCP).

    Each tool returns the JSON of the command of its name. The agent cannot choose the source, and
    no tool writes.
    """
    if find_spec("mcp") is None:
        exit_with_error(missing_package("mcp", "analyzer,mcp"))
    connection.access()  # an invalid option fails now, not in the first call
    from wattline_analyzer.agents.server import AnalyzerProcess, mcp_server

    mcp_server(AnalyzerProcess(_environment(connection))).run("stdio")


def _environment(connection: ConnectionOptions) -> dict[str, str]:
    """Return the environment in which each command finds this package and the source."""
    options = {
        "WATTLINE_SOURCE": connection.source,
        "WATTLINE_BASIC_AUTH": connection.basic_auth,
        "WATTLINE_BEARER_TOKEN_FILE": connection.bearer_token_file,
        "WATTLINE_HEADERS": "\n".join(connection.header or ()) or None,
        "WATTLINE_CA_FILE": connection.ca_file,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    paths = [str(Path(wattline_analyzer.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **given,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUTF8": "1",
    }
