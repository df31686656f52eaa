"""What `exporter check` says of the CPU's energy and of the board's sensors, and the option of the model."""

from __future__ import annotations

import asyncio
import errno

import pytest

from exporter.cli.check import Line, _board, _cpu
from exporter.settings import Settings, UsageError
from exporter.sources.cpu_energy.choose import CpuSource
from exporter.sources.cpu_energy.perf import PerfSource
from exporter.sources.cpu_energy.powercap_source import RaplSource
from exporter.sources.hwmon import HwmonSource
from exporter.wiring import cpu_source
from tests.fakes import hwmon, power_pmu, powercap
from tests.fakes.power_pmu import FakeKernel


def cpu(source: CpuSource) -> list[Line]:
    return asyncio.run(_cpu(source))


def test_where_powercap_answers_one_line_says_so(tmp_path):
    powercap.amd(tmp_path)
    (line,) = cpu(cpu_source(Settings(tmp_path, sysfs=tmp_path)))
    assert line == Line("rapl    works: core 0, package 0, by powercap", measures=True)


def test_where_perf_has_to_do_the_reason_and_what_would_mend_it_follow(tmp_path):
    powercap.amd(tmp_path).break_zone("intel-rapl:0")
    powercap.Powercap(tmp_path).break_zone("intel-rapl:0:0")
    power_pmu.pmu(tmp_path, "power", 9, "0", ["energy-pkg"])
    kernel = FakeKernel()
    perf = PerfSource(tmp_path, tmp_path, open_event=kernel.open_event)
    works, why = cpu(CpuSource([RaplSource(tmp_path), perf]))
    perf.close()
    kernel.close()
    assert works == Line("rapl    works: package 0, by perf", measures=True)
    assert why.text.startswith("rapl    not by powercap: cannot read energy_uj of 2 of 2 RAPL zones (Is a directory); ")


def test_where_nothing_answers_each_way_says_what_it_lacks_and_the_capability_what_for(tmp_path):
    power_pmu.pmu(tmp_path, "power", 9, "0", ["energy-pkg"])
    kernel = FakeKernel(refuse=errno.EACCES)
    ways = [RaplSource(tmp_path), PerfSource(tmp_path, tmp_path, open_event=kernel.open_event)]
    off, perf, model = cpu(CpuSource(ways))
    assert off.text.startswith("rapl    off: no RAPL on this machine")
    assert perf.text.startswith(
        "rapl    nor by perf: perf_event_open: not permitted, kernel.perf_event_paranoid is ?; "
    )
    assert "needs CAP_PERFMON" in perf.text
    assert model.text == "rapl    may be estimated from utilization: --cpu.power-model idle=W,max=W"
    assert not any(line.measures for line in (off, perf, model))


def test_an_estimate_is_called_one_and_measures_nothing(tmp_path):
    lines = cpu(cpu_source(Settings(tmp_path, sysfs=tmp_path, cpu_power_model="idle=40,max=150")))
    assert lines[-1].text == (
        "rapl    estimates: the CPU's energy is an estimate from its utilization, by --cpu.power-model idle=40,max=150"
    )
    assert not any(line.measures for line in lines)


def test_a_model_that_is_none_is_a_usage_error_that_names_the_option(tmp_path):
    with pytest.raises(UsageError, match=r"^--cpu.power-model: expected idle=W,max=W .* not 'idle=90,max=60'$"):
        cpu_source(Settings(tmp_path, cpu_power_model="idle=90,max=60"))


def test_the_boards_sensors_are_named_and_a_board_without_says_nothing(tmp_path):
    assert asyncio.run(_board(HwmonSource(tmp_path))) == []
    hwmon.meter(tmp_path, 0, "Grace Power Socket 0", 150)
    assert asyncio.run(_board(HwmonSource(tmp_path))) == [
        Line("hwmon   works: power_meter-ACPI000D:00/Grace Power Socket 0")
    ]
