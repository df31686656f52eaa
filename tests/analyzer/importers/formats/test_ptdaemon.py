"""Import of logs of SPEC PTDaemon, written as in the examples of mlcommons/power-dev."""

import pytest

from tests.analyzer.importers.sample_files import (
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
    write_nvidia_smi_log,
)

VOLTS, FACTOR = 230.0, 0.95


def sample(offset_s, watts, mark="session_testing", more="", **values):
    values = {"Volts": VOLTS, "Amps": watts / VOLTS / FACTOR, "PF": FACTOR} | values
    cells = "".join(f",{name},{value:.6f}" for name, value in values.items())
    return f"Time,{local_time(offset_s, '%m-%d-%Y %H:%M:%S')}.000,Watts,{watts:.6f}{cells},Mark,{mark}{more}"


def two_channels(offset_s, *watts):
    """Write a sample as in ptd_client_server/tests: volts, amps and power factor of the sum are
    unknown.
    """
    more = "".join(
        f",Ch{number},Watts,{one:.6f},Volts,{VOLTS:.6f},Amps,{one / VOLTS / FACTOR:.6f},PF,{FACTOR:.6f}"
        for number, one in enumerate(watts, 1)
    )
    return sample(offset_s, 400, more=more, Volts=-1.0, Amps=-1.0, PF=-1.0)


def message(offset_s, text):
    return f"{local_time(offset_s, '%m-%d-%Y %H:%M:%S')}.000: {text}"


def write(path, lines):
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture
def gpu_log(tmp_path):
    return write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])


def test_ptdaemon_shows_power_missed_by_sensors(imported, gpu_log, tmp_path):
    # sensors 300 W of the analyzer's 400 W over 30 s: 9,000 of 12,000 J
    spl = write(tmp_path / "spl.txt", [sample(t, 400) for t in range(31)])

    report = single_report(imported(gpu_log, spl))

    assert component_energy_j(report) == pytest.approx(9_000)
    (text,) = finding_texts_of(report, "wall_meter")
    assert "12,000 J" in text
    assert "3,000 J (25.0 %)" in text


def test_ptdaemon_log_has_messages_and_samples_of_two_measurements(
    call, imported, gpu_log, tmp_path
):
    """The range is found at 700 W one minute before, and the analyzer has two channels, with 150
    and 250 W.
    """
    log = write(
        tmp_path / "ptd_logs.txt",
        [
            "SPEC PTDaemon Tool by Standard Performance Evaluation Corporation",
            message(-70, "Go with mark 'session_ranging'"),
            *(sample(t, 700, "session_ranging") for t in range(-60, -30)),
            message(
                -25, "WARNING: Uncertainty 1.20%, which is above 1.00% limit for the last sample!"
            ),
            *(two_channels(t, 150, 250) for t in range(31)),
            message(31, "Completed test"),
        ],
    )

    report = single_report(imported(gpu_log, log))
    _, _, stderr = call(
        "import", gpu_log, log, "--out", tmp_path / "other.sqlite", "--timezone", "UTC"
    )

    assert "the wall meter counted 12,000 J" in finding_texts_of(report, "wall_meter")[0]
    assert f"{log}: left out 30 samples in ranging mode" in stderr
    assert f"{log}: warnings and errors of PTDaemon: 1, the first: Uncertainty 1.20%" in stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (sample(31, 400_000), "implausible power in W: 400,000"),
        (sample(31, 400, PF=0.095), "400 W contradict 230 V"),
        (two_channels(31, 150, 350), "400 W are not the sum of the channels, 500 W"),
        (
            sample(31, 400).replace("Time,07", "Time,2024-07"),
            "is not a time as 12-31-2020 10:21:51.496",
        ),
        (sample(31, 400).rpartition(",Mark")[0], "not a sample of PTDaemon"),
    ],
)
def test_ptdaemon_line_that_cannot_be_true_is_reported(call, gpu_log, tmp_path, line, reason):
    spl = write(tmp_path / "spl.txt", [*(sample(t, 400) for t in range(31)), line])

    code, _, stderr = call(
        "import", gpu_log, spl, "--out", tmp_path / "h.sqlite", "--timezone", "UTC"
    )

    assert code != 0
    assert f"{spl}:32: " in stderr
    assert reason in stderr


@pytest.mark.parametrize("watts", [float("nan"), -1.0])
def test_ptdaemon_sample_without_reading_is_counted(call, gpu_log, tmp_path, watts):
    spl = write(tmp_path / "spl.txt", [*(sample(t, 400) for t in range(31)), sample(31, watts)])

    code, _, stderr = call(
        "import", gpu_log, spl, "--out", tmp_path / "h.sqlite", "--timezone", "UTC"
    )

    assert code == 0, stderr
    assert f"{spl}: no power in 1 line" in stderr


def test_ptdaemon_direct_current_has_no_power_factor(imported, gpu_log, tmp_path):
    lines = [sample(t, 400).partition(",PF")[0] + ",Mark,run" for t in range(31)]

    report = single_report(imported(gpu_log, write(tmp_path / "meter.txt", lines)))

    assert "the wall meter counted 12,000 J" in finding_texts_of(report, "wall_meter")[0]
