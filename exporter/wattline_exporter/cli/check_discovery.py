"""Lines of `exporter check` about the discovery of runs."""

from __future__ import annotations

import asyncio

from wattline_exporter.cli.kubernetes import pod_names, pods_of_node
from wattline_exporter.config.settings import Settings
from wattline_exporter.runs.discovery.container_exits import (
    describe_sockets,
    engine_sockets,
    runtime_sockets,
)
from wattline_exporter.sensors.kubernetes.pods import LOG_FOLDER
from wattline_exporter.sensors.processes.cgroups import describe_visible_cgroups
from wattline_exporter.sensors.processes.table import may_read_all
from wattline_exporter.sensors.readings import SourceError
from wattline_exporter.sensors.registry import CheckLine


async def discovery_lines(settings: Settings) -> list[CheckLine]:
    """Describe the cgroups, labels and outcomes that the discovery of runs can read. Raises
    UsageError.
    """
    kinds = settings.discovered_kinds()
    if not kinds:
        return []
    lines = [
        CheckLine(f"runs    discovered: {', '.join(kinds)}; it sees {describe_visible_cgroups()}")
    ]
    if "slurm" in kinds and not may_read_all():
        lines.append(
            CheckLine(
                "runs    in part: it cannot read the environment of Slurm jobs; run it as root for "
                "their labels"
            )
        )
    if "kubernetes" in kinds and (
        settings.discover != "auto" or settings.kubernetes_pods or settings.kubelet_socket
    ):
        try:
            pods = await asyncio.to_thread(pods_of_node(settings))
            lines.append(CheckLine(f"runs    pods with names: {len(pods)}"))
        except SourceError as error:
            lines.append(
                CheckLine(
                    f"runs    in part: runs of pods have no labels of --kubernetes.pods: {error}"
                )
            )
            lines.append(await _pod_names_line(settings))
    if {"kubernetes", "container"} & set(kinds):
        lines += _outcome_lines()
    return lines


async def _pod_names_line(settings: Settings) -> CheckLine:
    """Describe the names of pods while --kubernetes.pods cannot be read."""
    read = pod_names(settings)
    if read is None:
        source = (
            "the kubelet, for pods that alone hold a GPU"
            if settings.kubelet_socket
            else "no source"
        )
        return CheckLine(f"runs    names of pods: from {source}")
    try:
        return CheckLine(
            f"runs    names of pods: {len(await asyncio.to_thread(read))} from {LOG_FOLDER}"
        )
    except SourceError as error:
        return CheckLine(f"runs    in part: runs of pods have no names: {error}")


def _outcome_lines() -> list[CheckLine]:
    """Describe the sockets that have the exit codes of containers."""
    sockets = list(describe_sockets(engine_sockets(), runtime_sockets()))
    usable = [text for is_usable, text in sockets if is_usable]
    lines = [
        CheckLine(f"runs    in part: outcomes of containers: {text}")
        for is_usable, text in sockets
        if not is_usable
    ]
    return [
        CheckLine(
            "runs    outcomes of containers: "
            f"{', '.join(usable) or 'no socket of a container runtime'}"
        ),
        *lines,
    ]
