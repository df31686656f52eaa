"""Outcomes of services on a real systemd."""

from __future__ import annotations

import pytest

from tests.deploy.machine import SOURCE, Machine
from tests.polling import eventually

_SCRIPT = """
import asyncio, sys
from wattline_exporter.runs.discovery.outcomes import unit_end
print(asyncio.run(unit_end(sys.argv[1])).outcome)
"""


@pytest.mark.parametrize(
    ("name", "lines", "outcome"),
    [
        ("good", "ExecStart=/bin/sh -c 'sleep 0.2'", "ok"),
        ("bad", "ExecStart=/bin/sh -c 'exit 3'", "failed"),
        ("killed", "ExecStart=/bin/sh -c 'kill -KILL $$$$'", "failed"),
        ("later", "ExecStart=/bin/sh -c 'exit 3'\nRestart=on-failure\nRestartSec=1h", "failed"),
        ("slow-stop", "ExecStart=/bin/true\nExecStopPost=/bin/sleep 1", "ok"),
        ("running", "ExecStart=/bin/sleep 600", "unknown"),
    ],
)
def test_service_outcome_is_the_result_of_systemd(
    machine: Machine, name: str, lines: str, outcome: str
) -> None:
    machine.write(f"/etc/systemd/system/wl-{name}.service", f"[Service]\n{lines}\n")
    assert machine.run("systemctl", "start", f"wl-{name}").returncode == 0
    if name != "running":
        process = ["systemctl", "show", "--value", "--property=MainPID", f"wl-{name}"]
        eventually(lambda: machine.run(*process).stdout.strip() == "0", "the exit of its process")
    found = machine.run(
        "env",
        f"PYTHONPATH={SOURCE}/exporter:{SOURCE}/workloads",
        "/opt/wattline/bin/python3",
        "-c",
        _SCRIPT,
        f"wl-{name}.service",
    )
    assert found.stdout.strip() == outcome, found.stderr


def test_unit_that_systemd_does_not_know_has_no_outcome(machine: Machine) -> None:
    found = machine.run(
        "env",
        f"PYTHONPATH={SOURCE}/exporter:{SOURCE}/workloads",
        "/opt/wattline/bin/python3",
        "-c",
        _SCRIPT,
        "wl-none.service",
    )
    assert found.stdout.strip() == "unknown", found.stderr
