"""CPU energy and the power model in `exporter check`."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.fakes import power_pmu, powercap
from tests.fakes.power_pmu import FakeKernel
from wattline_exporter.config.values import UsageError
from wattline_exporter.sensors.cpu import CpuOptions, find_cpu
from wattline_exporter.sensors.cpu.check import cpu_lines
from wattline_exporter.sensors.cpu.methods import CpuSource
from wattline_exporter.sensors.cpu.perf import PerfSource
from wattline_exporter.sensors.cpu.powercap import RaplSource
from wattline_exporter.sensors.registry import CheckLine, SensorContext


def found(sysfs: Path, model: str | None = None) -> CpuSource:
    (source,) = find_cpu(CpuOptions(power_model=model), SensorContext(sysfs=sysfs))
    return source


def test_check_cpu_with_powercap_is_one_line(tmp_path):
    powercap.amd(tmp_path)
    (line,) = cpu_lines(found(tmp_path))
    assert line == CheckLine("rapl    works: core 0, package 0, by powercap", measures=True)


def test_check_cpu_zone_that_does_not_move_is_not_measured(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 100.0)
    tree.zone("intel-rapl:1", "psys", 100.0)
    ended = threading.Event()

    def use_package():
        while not ended.wait(0.02):
            tree.tick(1.0, "intel-rapl:0")

    thread = threading.Thread(target=use_package)
    thread.start()
    try:
        works, problem = cpu_lines(found(tmp_path))
    finally:
        ended.set()
        thread.join()

    assert works == CheckLine("rapl    works: package 0, by powercap", measures=True)
    assert (
        problem.text
        == "rapl    in part: the counter of psys 0 does not move; its energy is not measured"
    )


def test_check_cpu_with_perf_adds_cause_and_remedy_of_powercap(tmp_path):
    powercap.amd(tmp_path).break_zone("intel-rapl:0")
    powercap.Powercap(tmp_path).break_zone("intel-rapl:0:0")
    power_pmu.pmu(tmp_path, "power", 9, "0", ["energy-pkg"])
    kernel = FakeKernel()
    perf = PerfSource(tmp_path, tmp_path, open_event=kernel.open_event)
    works, why = cpu_lines(CpuSource([RaplSource(tmp_path), perf]))
    perf.close()
    kernel.close()
    assert works == CheckLine("rapl    works: package 0, by perf", measures=True)
    assert why.text.startswith(
        "rapl    powercap unavailable: cannot read energy_uj of 2 of 2 RAPL zones (Is a "
        "directory); "
    )


def test_check_cpu_without_any_method_lists_all_causes(tmp_path):
    power_pmu.pmu(tmp_path, "power", 9, "0", ["energy-pkg"])
    kernel = FakeKernel(refuse=errno.EACCES)
    ways = [RaplSource(tmp_path), PerfSource(tmp_path, tmp_path, open_event=kernel.open_event)]
    (line,) = cpu_lines(CpuSource(ways))
    assert line.text.startswith("rapl    off: no RAPL on this host")
    assert "; perf: perf_event_open: not permitted, kernel.perf_event_paranoid is ?; " in line.text
    assert "give the exporter CAP_PERFMON" in line.text
    assert line.text.endswith("; or estimate CPU energy with --cpu.power-model idle=W,max=W")
    assert not line.measures


def test_check_cpu_model_is_an_estimate_and_measures_nothing(tmp_path):
    lines = cpu_lines(found(tmp_path, "idle=40,max=150"))
    assert lines[-1].text == (
        "rapl    estimates: CPU energy is estimated from utilization, --cpu.power-model "
        "idle=40,max=150"
    )
    assert not any(line.measures for line in lines)


def test_cpu_options_invalid_model_is_a_usage_error():
    with pytest.raises(
        UsageError, match=r"^--cpu.power-model: expected idle=W,max=W .* not 'idle=90,max=60'$"
    ):
        CpuOptions(power_model="idle=90,max=60")
