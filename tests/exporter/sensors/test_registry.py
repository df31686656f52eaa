"""A sensor that is one new file: its options, its check, its polls and its readings."""

from __future__ import annotations

import pytest

from tests.daemon import daemon, environment
from tests.fork_server import ForkServer
from wattline_exporter.sensors.registry import (
    CheckLine,
    ChosenSensor,
    SensorContext,
    SensorKind,
    choose_sensors,
    sensor_kinds,
)

HEATER = '''
from dataclasses import dataclass
from typing import Annotated

import typer

from wattline.contract.metrics import HWMON_POWER
from wattline_exporter.sensors.readings import Batch, Device, Poll, Reading, boottime
from wattline_exporter.sensors.registry import SensorKind


@dataclass(frozen=True, kw_only=True)
class HeaterOptions:
    power_w: Annotated[
        float, typer.Option("--heater.power", help="Power of the heater.", metavar="W")
    ] = 100.0


class HeaterSource:
    """Source whose counter rises by 20 J at each of the first five reads after the first one."""

    name = "heater"

    def __init__(self, power_w):
        self.power_w = power_w
        self.reads = 0

    def read(self):
        now_s = boottime()
        counter_j = 1_000.0 + 20.0 * min(self.reads, 5)
        self.reads += 1
        device = Device("hwmon", "heater/coil")
        poll = Poll(device, now_s, now_s, counter_j=counter_j, instant_w=self.power_w)
        return Batch((Reading(HWMON_POWER, ("heater", "coil"), self.power_w),), (poll,))


SENSOR = SensorKind(
    name="heater",
    help="Read the power of the heater.",
    period_s=0.1,
    find=lambda options, _context: [HeaterSource(options.power_w)],
    options=HeaterOptions,
    default=False,
)
'''
LAUNCHER = """
import sys
from wattline_exporter import sensors

sensors.__path__.append(sys.argv.pop(1))
from wattline_exporter.cli.main import main

main()
"""
BARE = ("--no-collector.nvml", "--no-collector.rapl", "--no-collector.hwmon", "--no-collector.host")


@pytest.fixture
def program(tmp_path):
    """Return the exporter with one more file among its sensors."""
    folder = tmp_path / "sensors"
    folder.mkdir()
    (folder / "heater.py").write_text(HEATER)
    return ("-c", LAUNCHER, str(folder))


def output(program, *arguments):
    done = ForkServer(forks=False).run([*program, *arguments], environment(), timeout_s=60)
    assert not done.stderr
    return done.stdout


def test_new_sensor_file_has_its_options_in_the_help(program):
    text = " ".join(output(program, "serve", "--help").split())

    assert (
        "--collector.heater / --no-collector.heater Read the power of the heater. [default: off]"
        in text
    )
    assert "--heater.power W Power of the heater. [default: 100.0]" in text


def test_new_sensor_file_has_its_line_in_the_check(tmp_path, program):
    options = ("check", *BARE, "--state.path", str(tmp_path / "state"))

    assert "heater" not in output(program, *options)
    assert (
        "heater  works: hwmon heater/coil"
        in output(program, *options, "--collector.heater").splitlines()
    )


def test_new_sensor_file_is_metered_and_exported(tmp_path, program):
    options = (*BARE, "--collector.heater", "--heater.power", "200")
    with daemon(tmp_path, *options, program=program, nursery=None) as running:
        running.wait_for_metric(
            lambda value: value == 100.0,  # 5 rises of 20 J
            "wattline_hwmon_energy_joules_total",
            chip="heater",
            sensor="coil",
        )
        assert running.value("wattline_hwmon_power_watts", chip="heater", sensor="coil") == 200.0
        assert running.value("wattline_source_up", source="heater") == 1.0


def test_sensor_kinds_are_in_the_order_of_the_help():
    assert [(kind.name, kind.default, kind.period_s) for kind in sensor_kinds()] == [
        ("rapl", True, 1.0),
        ("hwmon", True, 1.0),
        ("host", True, 5.0),
    ]
    assert [kind.name for kind in sensor_kinds() if kind.has_run_energy] == ["rapl"]


def test_choose_sensors_switch_replaces_the_default():
    chosen = choose_sensors({"hwmon": False})
    assert [(one.kind.name, one.is_enabled) for one in chosen] == [
        ("rapl", True),
        ("hwmon", False),
        ("host", True),
    ]


@pytest.mark.parametrize(
    ("default", "lines"), [(True, [CheckLine("fan     off: --no-collector.fan")]), (False, [])]
)
def test_disabled_sensor_has_no_source_and_a_line_if_it_is_on_by_default(default, lines):
    kind = SensorKind(
        name="fan", help="Read the fan.", period_s=1.0, find=lambda *_: [object()], default=default
    )
    fan = ChosenSensor(kind, is_enabled=False, options=kind.options())
    assert fan.sources(SensorContext()) == ()
    assert fan.check(SensorContext()) == lines
