from __future__ import annotations

import pytest

from tests.fakes import hwmon
from wattline.contract.metrics import CPU_ENERGY_METHOD, HWMON_POWER
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.sensors.board import (
    GraceSocketSource,
    HwmonSource,
    board_lines,
    find_board,
    find_power_sensors,
)
from wattline_exporter.sensors.readings import Batch, Device, Reading, SourceError
from wattline_exporter.sensors.registry import CheckLine, NoOptions, SensorContext

MODULE, GRACE, CPU, SYSIO = (f"power_meter-ACPI000D:{number:02d}" for number in range(4))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def watts(batch: Batch) -> dict[str, float | None]:
    return {poll.device.id: poll.instant_w for poll in batch.polls}


# -- the board


def test_hwmon_grace_hopper_sensors_have_firmware_names(tmp_path):
    hwmon.grace_hopper(tmp_path)
    batch = HwmonSource(tmp_path).read()
    assert watts(batch) == {
        f"{MODULE}/Module Power Socket 0": 520.0,
        f"{GRACE}/Grace Power Socket 0": 150.0,
        f"{CPU}/CPU Power Socket 0": 110.0,
        f"{SYSIO}/SysIO Power Socket 0": 25.0,
    }
    assert batch.readings[0] == Reading(HWMON_POWER, (MODULE, "Module Power Socket 0"), 520.0)
    assert batch.problems == ()


def test_hwmon_sensors_are_never_part_of_a_run(tmp_path):
    hwmon.grace_hopper(tmp_path)
    batch = HwmonSource(tmp_path).read()
    assert {poll.device.kind for poll in batch.polls} == {"hwmon"}
    assert {poll.device.component for poll in batch.polls} == {None}


def test_hwmon_chip_keeps_its_name_after_renumbering(tmp_path):
    hwmon.meter(tmp_path / "monday", 3, "Grace Power Socket 0", 150, instance=7)
    hwmon.meter(tmp_path / "tuesday", 12, "Grace Power Socket 0", 150, instance=7)
    monday, tuesday = (HwmonSource(tmp_path / day).read() for day in ("monday", "tuesday"))
    assert (
        watts(monday) == watts(tuesday) == {"power_meter-ACPI000D:07/Grace Power Socket 0": 150.0}
    )


def test_hwmon_jetson_rails_are_volts_times_amperes(tmp_path):
    hwmon.jetson(tmp_path)
    assert watts(HwmonSource(tmp_path).read()) == {
        "ina3221-1-0040/VDD_GPU_SOC": 6.0,  # 5 V x 1.2 A
        "ina3221-1-0040/VDD_CPU_CV": 0.0,  # 8 mA below zero is its offset
    }


def test_hwmon_rail_with_power_file_is_not_exported_twice(tmp_path):
    folder = hwmon.jetson(tmp_path)
    (folder / "power1_input").write_text("6010000\n")
    assert watts(HwmonSource(tmp_path).read())["ina3221-1-0040/VDD_GPU_SOC"] == pytest.approx(6.01)
    assert len(find_power_sensors(tmp_path / "class/hwmon")) == 2


def test_hwmon_other_chips_volts_and_amperes_are_ignored(tmp_path):
    files = {
        "in1_input": "230000",
        "curr1_input": "2000",
        "power1_input": "410000000",
        "power1_label": "pin",
    }
    hwmon.chip(
        tmp_path, 0, "pmbus", "i2c/7-0058", {**files, "in2_input": "12000", "curr2_input": "30000"}
    )
    assert watts(HwmonSource(tmp_path).read()) == {"pmbus-7-0058/pin": 410.0}


def test_hwmon_average_is_preferred(tmp_path):
    hwmon.chip(
        tmp_path,
        0,
        "amdgpu",
        "pci/0000:03:00.0",
        {"power1_average": "90000000", "power1_input": "120000000"},
    )
    assert watts(HwmonSource(tmp_path).read()) == {"amdgpu-0000:03:00.0/power1": 90.0}


def test_hwmon_equal_labels_are_separated_by_channel(tmp_path):
    files = {
        f"power{n}_{kind}": text
        for n in (1, 2)
        for kind, text in (("label", "PSU"), ("input", f"{n}000000"))
    }
    hwmon.chip(tmp_path, 0, "psu", "platform/psu.0", files)
    assert watts(HwmonSource(tmp_path).read()) == {
        "psu-psu.0/PSU": 1.0,
        "psu-psu.0/PSU power2": 2.0,
    }


def test_hwmon_label_slash_is_replaced(tmp_path):
    hwmon.chip(
        tmp_path, 0, "a/b", "platform/c", {"power1_input": "1000000", "power1_label": "in/out"}
    )
    assert watts(HwmonSource(tmp_path).read()) == {"a_b-c/in_out": 1.0}


def test_hwmon_chips_without_power_are_ignored(tmp_path):
    hwmon.chip(
        tmp_path,
        0,
        "coretemp",
        "platform/coretemp.0",
        {"temp1_input": "40000", "in1_input": "1000"},
    )
    assert HwmonSource(tmp_path).read() == Batch()


def test_hwmon_board_without_sensors_is_up_and_empty(tmp_path):
    assert HwmonSource(tmp_path).read() == Batch()


def test_hwmon_board_without_sensors_at_start_has_no_source(tmp_path):
    board = tmp_path / "board"
    hwmon.grace_hopper(board)

    assert find_board(NoOptions(), SensorContext(sysfs=tmp_path / "bare")) == []
    assert [s.name for s in find_board(NoOptions(), SensorContext(sysfs=board))] == ["hwmon"]


def test_check_hwmon_lists_sensors_or_nothing(tmp_path):
    assert board_lines(HwmonSource(tmp_path)) == []
    hwmon.meter(tmp_path, 0, "Grace Power Socket 0", 150)
    assert board_lines(HwmonSource(tmp_path)) == [
        CheckLine("hwmon   works: power_meter-ACPI000D:00/Grace Power Socket 0")
    ]


def test_hwmon_integral_of_a_sensor_is_its_energy(tmp_path):
    (place, *_) = hwmon.grace_hopper(tmp_path)
    clock = Clock()
    source, line = HwmonSource(tmp_path, clock), DeviceMeter(update_s=0.001)
    for power_w in (500, 500, 700, 700, 500):  # 500 + 600 + 700 + 600 J
        (place / "power1_average").write_text(f"{power_w}000000\n")
        line.push(source.read().polls[0])
        clock.now_s += 1
    assert line.totals.energy_j == pytest.approx(2_400)


# -- faults


def silence(folder, file):
    """Make reading fail, as with EIO or ENODATA."""
    (folder / file).unlink()
    (folder / file).mkdir()


def test_hwmon_failing_sensor_is_absent_and_named_once(tmp_path):
    _, grace, *_ = hwmon.grace_hopper(tmp_path)
    clock = Clock()
    source = HwmonSource(tmp_path, clock)
    assert len(source.read().polls) == 4
    silence(grace, "power1_average")
    all_problems = set()
    for _ in range(5):
        clock.now_s += 1
        batch = source.read()
        all_problems |= set(batch.problems)
        assert f"{GRACE}/Grace Power Socket 0" not in watts(batch)
        assert len(batch.polls) == len(batch.readings) == 3
    (problem,) = all_problems
    assert problem.startswith(
        "cannot read Grace Power Socket 0 of power_meter-ACPI000D:01 (Is a directory): see: cat "
    )


def test_hwmon_intermittent_failure_is_named_once(tmp_path):
    _, grace, *_ = hwmon.grace_hopper(tmp_path)
    clock = Clock()
    source = HwmonSource(tmp_path, clock)
    has_problem = []
    for second in range(100):
        clock.now_s += 1
        (grace / "power1_average").write_text("150000000\n" if second % 2 or second > 20 else "\n")
        has_problem.append(bool(source.read().problems))
    assert has_problem[0]
    assert has_problem == sorted(has_problem, reverse=True)  # it starts once and ends once
    assert not has_problem[-1]


@pytest.mark.parametrize("text", ["-5000000", "", "nan", "none", "99999999999999999999", "1e6"])
def test_hwmon_invalid_power_is_absent(tmp_path, text):
    _, grace, *_ = hwmon.grace_hopper(tmp_path)
    (grace / "power1_average").write_text(text)
    batch = HwmonSource(tmp_path).read()
    assert len(batch.polls) == 3
    assert "(invalid power)" in batch.problems[0]


def test_hwmon_all_sensors_failing_fails_with_cause(tmp_path):
    silence(hwmon.meter(tmp_path, 0, "Grace Power Socket 0", 150), "power1_average")
    with pytest.raises(
        SourceError,
        match=r"cannot read any power sensor of the board; cannot read Grace Power Socket 0 of",
    ):
        HwmonSource(tmp_path).read()


def test_hwmon_new_sensor_is_found_within_a_minute(tmp_path):
    clock = Clock()
    source = HwmonSource(tmp_path, clock)
    assert source.read().polls == ()
    hwmon.grace_hopper(tmp_path)
    clock.now_s += 61
    assert len(source.read().polls) == 4


# -- the sockets of a Grace


def test_grace_package_is_the_whole_socket(tmp_path):
    hwmon.grace_hopper(tmp_path)
    batch = GraceSocketSource(tmp_path).read()
    assert [(poll.device, poll.instant_w) for poll in batch.polls] == [
        (Device("package", "0"), 150.0)
    ]
    assert batch.readings == (Reading(CPU_ENERGY_METHOD, ("0", "hwmon"), 1),)


def test_grace_superchip_sockets_are_packages(tmp_path):
    for socket in (0, 1):
        hwmon.meter(tmp_path, 2 * socket, f"Grace Power Socket {socket}", 200 + socket)
        hwmon.meter(tmp_path, 2 * socket + 1, f"CPU Power Socket {socket}", 120 + socket)
    batch = GraceSocketSource(tmp_path).read()
    assert {poll.device.id: poll.instant_w for poll in batch.polls} == {"0": 200.0, "1": 201.0}


def test_grace_without_socket_sensor_uses_the_core_rail(tmp_path):
    hwmon.meter(tmp_path, 0, "CPU Power Socket 0", 110)
    hwmon.meter(tmp_path, 1, "Module Power Socket 0", 520)
    assert [poll.instant_w for poll in GraceSocketSource(tmp_path).read().polls] == [110.0]


def test_grace_package_keeps_its_sensor(tmp_path):
    clock = Clock()
    hwmon.meter(tmp_path, 2, "CPU Power Socket 0", 110)
    source = GraceSocketSource(tmp_path, clock)
    source.read()
    hwmon.meter(tmp_path, 1, "Grace Power Socket 0", 150)
    clock.now_s += 61
    assert [poll.instant_w for poll in source.read().polls] == [110.0]


def test_grace_source_without_socket_sensor_fails(tmp_path):
    hwmon.jetson(tmp_path)
    with pytest.raises(SourceError, match="the board has no power sensor of a CPU socket"):
        GraceSocketSource(tmp_path).read()
