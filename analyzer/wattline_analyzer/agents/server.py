"""Read-only tools for AI agents; each returns the JSON of the command of its name."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from wattline.command_line import version_line
from wattline_analyzer.core.options import DEFAULT_SINCE

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

_INSTRUCTIONS = (
    "Measured energy of GPU jobs. Energies are in J with 95 % confidence intervals. A null value "
    "is unknown, not 0. "
    "Read the `findings` of a report before its figures. Measure a command with: workloads run -- "
    "COMMAND"
)
_Since = Annotated[str, Field(description="Time to search, up to now: 90m, 12h, 30d")]
_Until = Annotated[str, Field(description="End of the window: now, -2h, 2026-11-20T10:15:00Z")]
_RunId = Annotated[str, Field(description="ID of a run; the tool `runs` lists them")]
_DAY = "24h"


class AnalyzerProcess:
    """Commands of the analyzer as processes, with the source in their environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    async def output(self, command: str, *values: str, **options: object) -> list[str]:
        """Return the JSON of a command, and its messages if it has any. Raises ToolError with its
        messages.
        """
        from mcp.server.mcpserver.exceptions import ToolError

        words = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in options.items()
            if value is not None
        ]
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-P",
                "-m",
                "wattline_analyzer",
                command,
                "--format=json",
                *words,
                "--",
                *values,
            ),
            stdin=asyncio.subprocess.DEVNULL,  # stdin is the connection with the agent
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        try:
            stdout, stderr = await process.communicate()
        finally:
            if process.returncode is None:  # the agent cancelled the call
                process.kill()
        messages = stderr.decode(errors="replace").strip()
        if process.returncode:
            raise ToolError(
                messages or f"analyzer {command} ended with exit code {process.returncode}"
            )
        return [stdout.decode(), *([messages] if messages else [])]


def mcp_server(process: AnalyzerProcess) -> MCPServer:
    """Return the server with all tools."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer(
        "wattline",
        version=version_line("").strip(),
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
    )

    async def runs(
        since: _Since = DEFAULT_SINCE, limit: Annotated[int, Field(ge=1)] = 50
    ) -> list[str]:
        """List runs, newest first: ID, workload, labels, outcome, duration, energy."""
        return await process.output("runs", since=since, limit=limit)

    async def report(run_id: _RunId, since: _Since = DEFAULT_SINCE) -> list[str]:
        """Report a run: energy with its interval, phases, energy per unit of work, emissions,
        findings.
        """
        return await process.output("report", run_id=run_id, since=since)

    async def compare(
        runs_or_groups: Annotated[
            list[str],
            Field(
                description="Run IDs, or labels such as model=a,mps=true; the first is the baseline"
            ),
        ],
        since: _Since = DEFAULT_SINCE,
    ) -> list[str]:
        """Compare energy, energy per unit, duration and emissions of runs or groups of repeated
        runs.
        """
        return await process.output("compare", *runs_or_groups, since=since)

    async def usage(
        by: Annotated[str, Field(description="Keys of the groups, such as user,model")],
        since: _Since = _DAY,
        until: _Until = "now",
    ) -> list[str]:
        """Sum energy, GPU hours and emissions of all nodes by user, model or any other label of
        runs.
        """
        return await process.output("usage", by=by, since=since, until=until)

    async def waste(since: _Since = _DAY, until: _Until = "now") -> list[str]:
        """Find energy that GPUs use without work: where, by whom, how much, and the remedy."""
        return await process.output("waste", since=since, until=until)

    async def requests(
        run_id: _RunId,
        by: Annotated[
            str | None, Field(description="Labels of the groups, such as user,model")
        ] = None,
        since: _Since = DEFAULT_SINCE,
    ) -> list[str]:
        """Divide the GPU energy of an LLM server's run among its requests and tokens."""
        return await process.output("requests", run_id=run_id, by=by, since=since)

    async def recommend(
        experiment: Annotated[str, Field(description="Label `experiment` of the runs of a sweep")],
        max_slowdown: Annotated[
            float | None, Field(ge=0, description="Longest extra time in percent")
        ] = None,
        since: _Since = DEFAULT_SINCE,
    ) -> list[str]:
        """Recommend a power limit or clock from the runs of a sweep."""
        return await process.output(
            "recommend", experiment=experiment, max_slowdown=max_slowdown, since=since
        )

    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (runs, report, compare, usage, waste, requests, recommend):
        server.tool(annotations=read_only, structured_output=False)(tool)
    return server
