"""Run ids and labels of discovered runs.

Sources of labels: the environment of a Slurm job, the kubelet, the unit, the user's login name.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.contract.run import MAX_ID_LENGTH
from exporter.contract.run_limits import OWNER_LABELS
from exporter.model import printable
from exporter.processes.cgroup_paths import PREFIX_LENGTH, CgroupOwner
from exporter.processes.procfs import PROC

MAX_VALUE = 128
SLURM_CONF = Path("/etc/slurm/slurm.conf")
_DEFAULT_CLUSTER = "cluster"
_SLURM_LABELS = {
    "user": "SLURM_JOB_USER",
    "account": "SLURM_JOB_ACCOUNT",
    "partition": "SLURM_JOB_PARTITION",
    "job_name": "SLURM_JOB_NAME",
    "array_id": "SLURM_ARRAY_JOB_ID",
}


@dataclass(frozen=True, slots=True)
class Description:
    """Run id and labels of an owner. A second run of the same owner has the same `run_id`.

    `gpus`: indices of the GPUs that the scheduler assigned; empty if they are unknown.
    """

    run_id: str
    labels: dict[str, str]
    gpus: tuple[str, ...] = ()


class OwnerLabels:
    """Descriptions of owners. `allowed`: the labels to export."""

    def __init__(
        self,
        allowed: Collection[str] = OWNER_LABELS,
        *,
        proc: Path = PROC,
        slurm_conf: Path = SLURM_CONF,
        login_name: Callable[[int], str] | None = None,
    ) -> None:
        self._allowed = allowed
        self._proc = proc
        self._slurm_conf = slurm_conf
        self._login_name = login_name or _login_name

    def describe(self, owner: CgroupOwner, pid: int | None, started_at: float) -> Description:
        """Return the run id and the labels of an owner; `pid` is one of its processes, `started_at` Unix time."""
        labels: dict[str, str] = {}
        gpus: tuple[str, ...] = ()
        match owner.kind:
            case "slurm":
                environment = _environment(pid, self._proc) if pid else {}
                labels = {name: environment.get(variable, "") for name, variable in _SLURM_LABELS.items()}
                cluster = environment.get("SLURM_CLUSTER_NAME") or _cluster_name(self._slurm_conf)
                gpus = tuple(gpu for gpu in environment.get("SLURM_JOB_GPUS", "").split(",") if gpu)
                run_id = _limited("slurm", cluster, owner.id)
            case "kubernetes":
                run_id = f"pod-{owner.id}"
            case "container":
                run_id = f"container-{owner.id[:PREFIX_LENGTH]}"
            case "service":
                labels = {"unit": owner.id}
                run_id = _limited("unit", owner.id.removesuffix(".service"), f"{started_at:.0f}")
            case "user":
                name = self._login_name(int(owner.id))
                labels = {"user": name}
                run_id = _limited("user", name, f"{started_at:.0f}")
        kept = {name: printable(text)[:MAX_VALUE] for name, text in labels.items() if text and name in self._allowed}
        return Description(run_id, {"discovered": owner.kind, **kept}, gpus)


def _limited(kind: str, name: str, number: str) -> str:
    """Return KIND-NAME-NUMBER, with the name cut to the length of a run id."""
    return f"{kind}-{_id_part(name)[: MAX_ID_LENGTH - len(kind) - len(number) - 2]}-{number}"


def _id_part(text: str) -> str:
    """Return the text with the characters that a run id can have."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _login_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of a directory service, or of the host of this container
        return str(uid)


def _environment(pid: int, proc: Path) -> Mapping[str, str]:
    """Return the environment of a process at its start; empty without the permission to read it."""
    try:
        content = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in content.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def _cluster_name(conf: Path) -> str:
    try:
        text = conf.read_text(errors="replace")
    except OSError:
        return _DEFAULT_CLUSTER
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return match[1] if match else _DEFAULT_CLUSTER
