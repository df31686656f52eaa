"""Units and plausible ranges of quantities in imported files."""

import json
import shlex

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
)
from wattline_analyzer.importers.quantities import GPU_POWER_W, MEMORY_BYTES
from wattline_analyzer.importers.text import split_column
from wattline_analyzer.recommend import sweep


@pytest.mark.parametrize(
    ("text", "column_unit", "power_w"),
    [
        ("250000 mW", "", 250.0),
        ("250000", "mW", 250.0),
        ("250 W", "mW", 250.0),
        ("0.25", "kW", 250.0),
        ("46.19", "", 46.19),
        ("[N/A]", "W", None),
    ],
)
def test_quantity_unit_of_cell_precedes_unit_of_column(text, column_unit, power_w):
    assert GPU_POWER_W.parse(text, column_unit) == (
        None if power_w is None else pytest.approx(power_w)
    )


@pytest.mark.parametrize(
    "text",
    [
        "250000 W",
        "-250 W",
        "46,19 W",
        "1,250.00 W",
        "250 VA",
        "250 °C",
        "about 250",
        "nan W",
        "1,25,0 W",
    ],
)
def test_quantity_implausible_or_unknown_is_an_error(text):
    with pytest.raises(ValueError, match=r"implausible|unknown unit|not a number"):
        GPU_POWER_W.parse(text)


def test_quantity_memory_units_are_bytes():
    assert MEMORY_BYTES.parse("2 GiB") == 2 * 2**30
    assert MEMORY_BYTES.parse("2") == 2 * 2**20


def test_split_column_returns_name_and_unit():
    assert split_column("power.draw [mW]") == ("power.draw", "mW")
    assert split_column("Power (kW)") == ("power", "kW")
    assert split_column("watts") == ("watts", "")


def write_power_log(path, header, cells, count=11):
    """Write a log with one GPU whose power is the same text in each of `count` seconds."""
    lines = [
        f"{local_time(t, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, 0, GPU-a, {cells}" for t in range(count)
    ]
    path.write_text("\n".join([f"timestamp, index, uuid, {header}", *lines, ""]))
    return path


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("power.draw [W]", "250000 mW"),
        ("power.draw [mW]", "250000"),
        ("power.draw [W]", '"1,250.00 W"'),
    ],
)
def test_nvidia_smi_log_units_are_converted(imported, tmp_path, header, cell):
    report = single_report(imported(write_power_log(tmp_path / "log.csv", header, cell)))

    watts = 1_250 if "1,250" in cell else 250
    assert component_energy_j(report) == pytest.approx(watts * 10)
    assert "power is the column power.draw, which" in finding_texts_of(report, "imported")[0]


@pytest.mark.parametrize("cell", ["250000 W", "-250 W"])
def test_nvidia_smi_log_implausible_power_is_refused(call, tmp_path, cell):
    log = write_power_log(tmp_path / "log.csv", "power.draw [W]", cell)

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "log.csv:2: implausible GPU power" in stderr


def write_meter(folder, cells, column="watts", separator=","):
    """Write a log of a GPU with 50 W, and one of a wall meter with these cells, one per second."""
    quote = '"' if separator == "," else ""
    rows = [f"{BEGIN_S + t:.0f}{separator}{quote}{cell}{quote}" for t, cell in enumerate(cells)]
    plug = folder / "plug.csv"
    plug.write_text("\n".join([f"time{separator}{column}", *rows, ""]))
    return write_power_log(folder / "log.csv", "power.draw [W]", "50 W", len(cells)), plug


@pytest.mark.parametrize(
    ("plug", "wall"),
    [
        ((["0,125"] * 11, "power_kw", ","), "1,250 J"),
        (
            (["78,125"] * 10 + ["78,5"], "watts", ","),
            "781.4 J",
        ),  # 78.125 * 9 + (78.125 + 78.5) / 2 = 781.4375
        ((["1,250.5"] * 11, "watts", ","), "12,505 J"),
        ((["1,250"] * 10 + ["999.5"], "watts", ","), "12,375 J"),  # 1,250 * 9 + 1,124.75
        ((["78,125"] * 11, "watts", ";"), "781.2 J"),
        ((["300,5 W"] * 11, "watts", ";"), "3,005 J"),
    ],
)
def test_wall_meter_commas_by_values_of_column(call, tmp_path, plug, wall):
    files = write_meter(tmp_path, *plug)

    code, stdout, stderr = call(
        "import", *files, "--out", tmp_path / "h.sqlite", "--timezone", "UTC"
    )

    assert code == 0, stderr
    assert f"wall {wall} (plug)" in stdout


@pytest.mark.parametrize(
    "cells", [["78,125"] * 11, ["1,250"] * 11, ["78,5"] * 10 + ["1,250.5"], ["78,5"] * 10 + ["9.5"]]
)
def test_wall_meter_ambiguous_commas_are_refused(call, tmp_path, cells):
    files = write_meter(tmp_path, cells)

    code, _, stderr = call("import", *files, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "the commas of column 'watts' may precede decimals or separate thousands" in stderr


def test_nvidia_smi_log_unquoted_comma_is_refused(call, tmp_path):
    log = write_power_log(tmp_path / "log.csv", "power.draw [W]", "1,250.00 W")

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "more cells than columns" in stderr


def test_nvidia_smi_log_power_above_twice_the_limit_is_refused(call, tmp_path):
    log = write_power_log(tmp_path / "log.csv", "power.draw [W], power.limit [W]", "900 W, 400 W")

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "more than twice the power limit of 400 W" in stderr


@pytest.mark.parametrize("indices", [(0, 1), (0, 0, 0, 1, 1, 1)])
def test_nvidia_smi_log_with_two_indices_of_a_uuid_is_refused(call, tmp_path, indices):
    """Two lines a second of two GPUs with one UUID, or one GPU whose index changes."""
    lines = [
        f"{local_time(t, '%Y/%m/%d %H:%M:%S')}.000, {index}, GPU-a, {300 if index else 100}.00 W"
        for t, index in (
            enumerate(indices)
            if len(indices) > 2
            else [(t, index) for t in range(9) for index in indices]
        )
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, index, uuid, power.draw [W]", *lines, ""]))

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "cannot import GPU GPU-a: its index is 0 and 1" in stderr


def test_nvidia_smi_logs_with_and_without_index_are_of_one_gpu(imported, tmp_path):
    """A log with index of 0 to 10 s, and one without of 11 to 20 s: 100 W for 20 s."""
    with_index = [
        f"{local_time(t, '%Y/%m/%d %H:%M:%S')}.000, 0, GPU-a, 100.00 W" for t in range(11)
    ]
    without = [f"{local_time(t, '%Y/%m/%d %H:%M:%S')}.000, GPU-a, 100.00 W" for t in range(11, 21)]
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("\n".join(["timestamp, index, uuid, power.draw [W]", *with_index, ""]))
    second.write_text("\n".join(["timestamp, uuid, power.draw [W]", *without, ""]))

    report = single_report(imported(first, second))

    assert len(report.gpus) == 1
    assert component_energy_j(report) == pytest.approx(2_000)


def test_nvidia_smi_log_without_index_separates_gpus(imported, tmp_path):
    """Four GPUs of 100, 200, 300 and 400 W over 10 s, each query within 3 ms: 10,000 J."""
    lines = [
        f"{local_time(t + 0.001 * gpu, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, {100 * (gpu + 1)}.00 W"
        for t in range(11)
        for gpu in range(4)
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, power.draw [W]", *lines, ""]))

    report = single_report(imported(log))

    assert component_energy_j(report) == pytest.approx(10_000, rel=1e-3)
    assert len(report.gpus) == 4
    assert finding_texts_of(report, "gpus_by_order")


def test_nvidia_smi_log_without_index_and_with_gaps_is_refused(call, tmp_path):
    lines = [
        f"{local_time(t + 0.001 * gpu, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, 100.00 W"
        for t in range(11)
        for gpu in range(2 if t == 5 else 4)
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, power.draw [W]", *lines, ""]))

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "2 to 4 lines have the same time" in stderr


def test_aipowermeter_segments_are_separate_runs(imported, tmp_path):
    """100 W for 2 s and 50 W for 3 s, with 36 s between them that nothing recorded: 200 and 150
    J.
    """
    path = tmp_path / "train" / "power_metrics.json"
    path.parent.mkdir()
    records = [
        json.dumps({"date": local_time(t), "metrics": {"cpu": {"intel_power": watts}}})
        for t, watts in ((0, 100.0), (2, 100.0), (38, 50.0), (41, 50.0))
    ]
    end = json.dumps("END OF RECORDING SEGMENT")
    path.write_text("\n".join([*records[:2], end, *records[2:], end, ""]))

    reports = sorted(imported(path).values(), key=lambda report: report.started_at_s)

    assert [component_energy_j(report, "cpu") for report in reports] == pytest.approx(
        [200.0, 150.0]
    )
    assert [report.started_at_s - BEGIN_S for report in reports] == [0, 38]


def test_group_sweeps_imported_runs_are_one_sweep(imported, tmp_path):
    """Settings with other sample spacings and files: only the power limit is a setting."""
    lines = ["timestamp,iteration,tokens_per_sec,max_watt,total_power_draw"]
    for number, cap_w in enumerate((300, 400)):
        spacing_s = 2 + number
        lines += [
            f"{local_time(100 * number + spacing_s * k)},{k},50,{cap_w},{cap_w}" for k in range(6)
        ]
    path = tmp_path / "training_stats.csv"
    path.write_text("\n".join([*lines, ""]))

    reports = imported(path).values()
    fixed = [{name for name in report.labels if name not in sweep.RUN_LABELS} for report in reports]

    assert fixed == [set(), set()]


def test_import_several_power_limits_prints_command_that_compares_them(call, tmp_path):
    lines = ["timestamp,iteration,tokens_per_sec,max_watt,total_power_draw"]
    for number, cap_w in enumerate((300, 400)):
        lines += [f"{local_time(100 * number + 2 * k)},{k},50,{cap_w},{cap_w}" for k in range(6)]
    path, out = tmp_path / "training_stats.csv", tmp_path / "history.sqlite"
    path.write_text("\n".join([*lines, ""]))

    _, stdout, _ = call("import", path, "--out", out, "--timezone", "UTC")
    *_, command = stdout.splitlines()
    program, *arguments = shlex.split(command)
    code, advice, stderr = call(*arguments)

    assert (program, arguments[0]) == ("analyzer", "recommend")
    assert code == 0, stderr
    assert "300 W" in advice
    assert "400 W" in advice


def test_nvidia_smi_log_without_index_separates_16_gpus(imported, tmp_path):
    """Sixteen GPUs of 100 W over 10 s, each query within 15 ms, with one pause of 30 s, which has
    no energy.
    """
    lines = [
        f"{local_time(t + 0.001 * gpu, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, 100.00 W"
        for t in (*range(11), *range(40, 51))
        for gpu in range(16)
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, power.draw [W]", *lines, ""]))

    report = single_report(imported(log))

    assert len(report.gpus) == 16
    assert component_energy_j(report) == pytest.approx(16 * 100 * 20, rel=1e-3)


def test_nvidia_smi_log_with_other_columns_appended_is_refused(call, tmp_path):
    """The header may be repeated, but its columns may not change: the index would be read as
    power.
    """
    log = write_power_log(tmp_path / "log.csv", "power.draw [W]", "250 W")
    text = log.read_text()
    log.write_text(
        text + text + "timestamp, power.draw [W], index\n" + f"{local_time(20)}, 250 W, 0\n"
    )

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "log.csv:25: other columns than in the first line" in stderr


def test_import_uuid_of_200_kb_is_a_bad_line(call, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(
        f"timestamp, uuid, power.draw [W]\n{local_time(0)}, GPU-{'a' * 200_000}, 250 W\n"
    )

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "log.csv:2: gpu has 200000 characters" in stderr
