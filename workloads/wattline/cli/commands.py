"""Commands of the three programs by group, with the lines of their help."""

from __future__ import annotations

from typing import NamedTuple


class ListedCommand(NamedTuple):
    """Command of a program, with the first line of its help, which is too slow to load for a
    list.
    """

    program: str
    name: str
    help: str


GROUPS: dict[str, tuple[ListedCommand, ...]] = {
    "Measure": (
        ListedCommand("workloads", "run", "Measure a command as a run."),
        ListedCommand("workloads", "job", "Measure a built-in job as a run."),
        ListedCommand("workloads", "list", "List the built-in jobs."),
        ListedCommand("workloads", "plan", "Run the jobs of a plan file."),
        ListedCommand(
            "workloads", "sweep", "Run a job at each power limit, then restore the limits."
        ),
        ListedCommand(
            "workloads", "caps", "Show or restore the power limits and clocks that sweeps set."
        ),
    ),
    "Report": (
        ListedCommand("analyzer", "runs", "List the runs at the source."),
        ListedCommand("analyzer", "report", "Report a run or a time range."),
        ListedCommand("analyzer", "watch", "Show a live table of nodes and runs."),
        ListedCommand(
            "analyzer", "requests", "Divide the energy of a server's GPUs among its requests."
        ),
        ListedCommand("analyzer", "mcp", "Serve read-only tools to an AI agent (MCP)."),
        ListedCommand("analyzer", "export", "Export the raw samples of a run."),
        ListedCommand("analyzer", "import", "Import power logs and results of other tools."),
    ),
    "Compare and decide": (
        ListedCommand("analyzer", "compare", "Compare runs, or groups of runs."),
        ListedCommand("analyzer", "gate", "Fail if the energy of repeated runs increased."),
        ListedCommand(
            "analyzer", "recommend", "Recommend a power limit or clock from the runs of a sweep."
        ),
        ListedCommand(
            "analyzer", "variability", "Show the differences between GPUs at the same work."
        ),
        ListedCommand(
            "analyzer", "tenants", "Compare jobs that share a GPU with jobs that run alone."
        ),
        ListedCommand("analyzer", "best-start", "Find the start time with the lowest emissions."),
    ),
    "Cluster": (
        ListedCommand(
            "analyzer", "fleet", "Sum energy and energy per token of all nodes by group."
        ),
        ListedCommand(
            "analyzer",
            "usage",
            "Sum kWh, GPU hours, cost and emissions by user, model or any label.",
        ),
        ListedCommand(
            "analyzer", "waste", "Find energy that GPUs use without work, and who holds them."
        ),
    ),
    "Exporter": (
        ListedCommand(
            "exporter", "serve", "Run the exporter: sample sensors, record runs, serve /metrics."
        ),
        ListedCommand("exporter", "check", "Read each source once, and print its state."),
        ListedCommand("exporter", "regions", "List the values of --carbon.region, one per line."),
    ),
    "Shell": (
        ListedCommand(
            "wattline", "completion", "Print the completion script of a shell: bash, zsh or fish."
        ),
        ListedCommand("wattline", "man", "Write the manual pages to a folder."),
    ),
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}
