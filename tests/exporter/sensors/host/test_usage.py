from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from wattline.contract.metrics import (
    HOST_CPU_UTILIZATION,
    HOST_MEMORY_TOTAL,
    HOST_MEMORY_USED,
    PROCESS_CPU,
    PROCESS_MEMORY,
)
from wattline_exporter.sensors.host.usage import HostSource
from wattline_exporter.sensors.readings import SourceError

MEMINFO = """MemTotal:       16000 kB
MemFree:         1000 kB
MemAvailable:    6000 kB
Buffers:          100 kB
Cached:          4000 kB
SReclaimable:     200 kB
Shmem:             50 kB
Active:          5000 kB
Inactive:        3000 kB
Slab:             300 kB
"""


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Create a proc file system of plain files."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return tmp_path


def cpu(proc, **ticks):
    names = (
        "user",
        "nice",
        "system",
        "idle",
        "iowait",
        "irq",
        "softirq",
        "steal",
        "guest",
        "guest_nice",
    )
    (proc / "stat").write_text("cpu  " + " ".join(str(ticks.get(name, 0)) for name in names) + "\n")


def values(batch, metric):
    return {reading.labels: reading.value for reading in batch.readings if reading.metric is metric}


def test_host_first_read_has_no_utilization(proc):
    assert values(HostSource().read(), HOST_CPU_UTILIZATION) == {}


def test_host_utilization_is_since_the_last_read(proc):
    source = HostSource()
    cpu(proc, user=9_000, idle=1_000)
    source.read()
    cpu(
        proc, user=9_020, system=10, idle=1_060, iowait=10
    )  # of 100 ticks 30 were not idle; iowait is
    assert values(source.read(), HOST_CPU_UTILIZATION) == {(): pytest.approx(0.3)}


def test_host_guest_time_is_not_counted_twice(proc):
    source = HostSource()
    source.read()
    cpu(proc, user=50, guest=50, idle=50)
    assert values(source.read(), HOST_CPU_UTILIZATION) == {(): pytest.approx(0.5)}


def test_host_reads_without_time_between_have_no_utilization(proc):
    source = HostSource()
    source.read()
    assert values(source.read(), HOST_CPU_UTILIZATION) == {}


def test_host_two_sources_are_independent(proc):
    one, other = HostSource(), HostSource()
    one.read()
    cpu(proc, user=10, idle=10)
    other.read()
    assert values(one.read(), HOST_CPU_UTILIZATION) == {(): pytest.approx(0.5)}


def test_host_memory_used_is_total_minus_available(proc):
    batch = HostSource().read()
    assert values(batch, HOST_MEMORY_TOTAL) == {(): 16_000 * 1024}
    assert values(batch, HOST_MEMORY_USED) == {(): 10_000 * 1024}


def test_host_without_proc_fails_with_remedy(proc):
    (proc / "stat").unlink()
    with pytest.raises(
        SourceError,
        match=r"cannot read .*/stat: No such file or directory; check that proc is mounted",
    ):
        HostSource().read()


def test_host_own_processes_are_read_by_role():
    batch = HostSource(lambda: {"exporter": os.getpid()}).read()
    assert values(batch, PROCESS_CPU)[("exporter",)] > 0
    assert values(batch, PROCESS_MEMORY)[("exporter",)] > 1_000_000


def test_host_ended_process_is_skipped():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    batch = HostSource(lambda: {"nvml_worker": gone.pid, "exporter": os.getpid()}).read()
    assert set(values(batch, PROCESS_MEMORY)) == {("exporter",)}
