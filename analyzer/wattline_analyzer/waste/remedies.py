"""Commands that end or explain a finding."""

from __future__ import annotations

import re
import shlex

from wattline_analyzer.waste.model import Holder, WasteClass, WasteFinding

_JOB = re.compile(r"slurm-.+-(\d+)(?:\.\d+)?")
_CONTAINER = re.compile(r"container-([0-9a-f]{12,64})(?:\.\d+)?")
"""Ids of discovered runs. A client can give a run the label `discovered`, and any other id."""


def command_of(finding: WasteFinding, *, may_end: bool) -> str:
    """Return the command for a finding. Run nvidia-smi, docker and systemctl on the node of the
    finding.

    A command that ends a job is returned only if the finding is ongoing and `may_end`: every GPU of
    its holders is idle. Else the command explains the finding.
    """
    if not finding.ongoing:
        return " && ".join(_report(holder) for holder in finding.holders if holder.kind == "run")
    if finding.holders:
        return " && ".join(_end(one) if may_end else _report(one) for one in finding.holders)
    return f"nvidia-smi -i {','.join(gpu.gpu.uuid for gpu in finding.gpus)} {_smi_options(finding)}"


def _smi_options(finding: WasteFinding) -> str:
    if finding.kind is WasteClass.CLOCKS_STUCK:
        return "-rgc"
    if finding.kind is WasteClass.THROTTLED:
        return "-q -d PERFORMANCE,TEMPERATURE,POWER"
    if finding.kind is not WasteClass.LIMIT_LEFT:
        return "--query-compute-apps=pid,name,used_memory --format=csv"
    defaults_w = {
        gpu.default_limit_w for gpu in finding.gpus if _is_limited(gpu.limit_w, gpu.default_limit_w)
    }
    return f"-pl {min(watt for watt in defaults_w if watt is not None):g}" if defaults_w else "-rgc"


def _is_limited(limit_w: float | None, default_w: float | None) -> bool:
    return limit_w is not None and default_w is not None and limit_w < default_w - 0.5


def _end(holder: Holder) -> str:
    """Return the command that ends a job, pod, container or service; of other runs, the one that
    reports them.
    """
    kind = holder.label("discovered")
    namespace = holder.label("namespace")
    pod = holder.label("pod")
    if holder.kind == "pod":
        namespace, _, pod = holder.name.partition("/")
    if pod and namespace:
        return f"kubectl delete pod -n {shlex.quote(namespace)} {shlex.quote(pod)}"
    if kind == "slurm" and (job := _JOB.fullmatch(holder.name)):
        return f"scancel {job[1]}"
    if kind == "container" and (container := _CONTAINER.fullmatch(holder.name)):
        return f"docker stop {container[1]}"
    if kind == "service" and holder.label("unit"):
        return f"systemctl stop {shlex.quote(holder.label('unit'))}"
    return _report(holder)


def _report(holder: Holder) -> str:
    if holder.kind == "pod":
        namespace, _, pod = holder.name.partition("/")
        return f"kubectl describe pod -n {shlex.quote(namespace)} {shlex.quote(pod)}"
    return f"analyzer report --run-id {shlex.quote(holder.name)}"
