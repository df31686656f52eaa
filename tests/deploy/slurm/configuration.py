"""Files of a Slurm cluster on one machine: configuration, state and device nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
GPUS = 6
_SLURM_CONF = """
ClusterName=lab
SlurmctldHost=localhost
SlurmUser=root
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={ctld_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=Alloc
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd_port}
AccountingStoragePass={folder}/munge.sock
KillWait=1
Prolog={script}
Epilog={script}
TaskProlog={script}
EpilogSlurmctld={script}
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.21 Port={n1_port} CPUs=16 RealMemory=1000 Gres=gpu:{gpus}
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.22 Port={n2_port} CPUs=16 RealMemory=1000 Gres=gpu:{gpus}
PartitionName=main Nodes=n[1-2] Default=YES PriorityTier=1
PartitionName=high Nodes=n[1-2] PriorityTier=10
"""
_DBD_CONF = """
AuthInfo=socket={folder}/munge.sock
AuthType=auth/munge
DbdHost=localhost
DbdPort={dbd_port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
_SETTINGS = """
WATTLINE_EXPORTER=unix://{folder}/$SLURMD_NODENAME.sock
WATTLINE_PYTHON={python}
WATTLINE_SLURM_LOG={folder}/wattline.log
WATTLINE_NODE_URL="http://{{address}}:{exporter_port}"
SLURM_CONF={folder}/etc/slurm/slurm.conf
TMPDIR={folder}
HOME={folder}/home
"""


def write_configuration(folder: Path, ports: Mapping[str, int]) -> None:
    """Install the product's files for Slurm, and write the configuration of Slurm, MUNGE and the
    nodes' GPUs.
    """
    for name in ("state", "mysql", "home", "tmp"):
        (folder / name).mkdir()
    installed = subprocess.run(
        [REPOSITORY / "deploy/slurm/install.sh"],
        env={**os.environ, "DESTDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    etc = folder / "etc/slurm"
    assert "EpilogSlurmctld=/etc/slurm/wattline.sh" in installed.stdout
    values = {
        "folder": folder,
        "script": etc / "wattline.sh",
        "gpus": GPUS,
        "python": sys.executable,
        **ports,
    }
    _write(etc / "slurm.conf", _SLURM_CONF.format(**values))
    _write(etc / "slurmdbd.conf", _DBD_CONF.format(**values), 0o600)
    _write(etc / "wattline.conf", _SETTINGS.format(**values))
    _write(etc / "cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    _write(etc / "gres.conf", f"NodeName=n[1-2] Name=gpu File={folder}/nvidia[0-{GPUS - 1}]\n")
    for gpu in range(GPUS):
        os.mknod(folder / f"nvidia{gpu}", 0o020666, os.makedev(1, 3))
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)
