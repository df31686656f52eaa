"""Sample files of other tools, and reports of imported runs."""

import time
from contextlib import closing
from datetime import UTC, datetime

from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.report.assess import assess

BEGIN_S = 1_721_390_400.0  # 2024-07-19 12:00:00 UTC


def local_time(offset_s, form="%Y-%m-%d %H:%M:%S"):
    return datetime.fromtimestamp(BEGIN_S + offset_s, UTC).strftime(form)


def write_nvidia_smi_log(path, samples, *, uuids=("GPU-a", "GPU-b")):
    """Write a log of nvidia-smi with units; `samples` are seconds after the start and watts of each
    GPU.
    """
    lines = [
        "timestamp, index, uuid, power.draw [W], utilization.gpu [%], enforced.power.limit [W]"
    ]
    for offset_s, *watts in samples:
        when = local_time(offset_s, "%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines += [
            f"{when}, {i}, {uuids[i]}, {power:.2f} W, {0 if power < 100 else 97} %, 400.00 W"
            for i, power in enumerate(watts)
        ]
    path.write_text("\n".join([*lines, ""]))
    return path


def imported_run_report(history, run_id):
    with closing(HistorySource(history)) as source:
        return assess(
            load_run(source, run_id, time.time(), Clock(time.time, time.sleep), lambda _: None)
        )


def single_report(reports):
    assert len(reports) == 1
    return next(iter(reports.values()))


def finding_texts_of(report, code):
    return [finding.text for finding in report.findings if finding.code == code]


def component_energy_j(report, component="gpu"):
    return sum(device.energy.value for device in report.devices if device.component == component)
