"""Energy methods of devices, and the labels of estimates in all outputs."""

import csv
import io
import json

import pytest
import yaml

from tests.analyzer.node import START_S, NodeRun, scrape_times
from tests.analyzer.run_reports import finding_codes, finding_texts, run_frames, run_report
from wattline.contract import metrics as m
from wattline_analyzer.core.documents import as_json, as_yaml
from wattline_analyzer.core.terminal import console
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.document import report_csv, report_document
from wattline_analyzer.report.html.page import html_page
from wattline_analyzer.report.plot import run_plot
from wattline_analyzer.report.terminal import terminal_report
from wattline_analyzer.report.timeseries import power_csv, power_samples

CPU_RUN = NodeRun(cpu_j=1_000.0, phases={"measure": (20.0, 6_000.0)})


def cpu_method(method, *, from_s=float("-inf"), until_s=float("inf")):
    def extra(t):
        if from_s <= t < until_s:
            yield m.CPU_ENERGY_METHOD, {"package": "0", "method": method}, 1.0
            yield m.CPU_POWER, {"package": "0", "zone": "package"}, 50.0
        if t >= START_S:
            grams = {
                "run_id": "train-1",
                "component": "cpu",
                "basis": "average",
                "quality": "actual",
            }
            yield m.RUN_EMISSIONS, grams, 0.1
            yield (
                m.RUN_PHASE_ENERGY,
                {"run_id": "train-1", "phase": "measure", "component": "cpu"},
                1_000.0,
            )

    return extra


def device(report, component):
    return next(device for device in report.devices if device.component == component)


def plain_text(report):
    target = io.StringIO()
    console(target).print(terminal_report(report))
    return target.getvalue()


def test_energy_by_model_is_estimate_without_interval(tmp_path):
    report = run_report(tmp_path, CPU_RUN, extra=cpu_method("model"))

    assert device(report, "cpu").estimated
    assert device(report, "cpu").energy.half_width is None  # the exporter reported 1 J
    assert report.energy["cpu"].half_width is None
    assert report.energies.whole.half_width is None
    assert report.estimated == {"cpu"}
    assert report.headline.half_width == 10.0  # the GPU's is a measurement
    ((subject, text),) = finding_texts(report, "estimate")
    assert subject == "CPU 0"
    assert text.startswith(
        "its energy is an estimate from utilization, by the exporter's --cpu.power-model"
    )


@pytest.mark.parametrize("method", ["rapl", "perf", "hwmon"])
def test_measured_cpu_energy_names_its_method(tmp_path, method):
    report = run_report(tmp_path, CPU_RUN, extra=cpu_method(method))

    assert device(report, "cpu").methods == (method,)
    assert device(report, "cpu").energy.half_width == 1.0
    assert "estimate" not in finding_codes(report)
    assert method in plain_text(report)
    assert "estimate" not in plain_text(report)


@pytest.mark.parametrize(
    ("model_s", "expected"),
    [
        ((START_S - 30, START_S + 5), ("model", "rapl")),  # the method at the run's start counts
        ((START_S + 5, START_S + 60), ("rapl", "model")),
        ((START_S - 60, START_S - 5), ("rapl",)),
        ((START_S + 25, START_S + 60), ("rapl",)),
    ],
)
def test_energy_method_is_that_of_the_run(tmp_path, model_s, expected):
    def extra(t):
        yield from cpu_method("model" if model_s[0] <= t < model_s[1] else "rapl")(t)

    report = run_report(tmp_path, CPU_RUN, extra=extra)

    assert device(report, "cpu").methods == expected
    assert device(report, "cpu").estimated == ("model" in expected)
    assert [", then ".join(expected) in text for _, text in finding_texts(report, "estimate")] == [
        True
    ] * ("model" in expected)


@pytest.mark.parametrize("offset_s", [-7.0, 7.0])
def test_energy_method_between_scrapes_is_nearest(tmp_path, offset_s):
    run = NodeRun(end_s=START_S + 2, cpu_j=100.0)
    times = scrape_times(15, START_S - 60 + offset_s, START_S + 60)
    report = run_report(tmp_path, run, times=times, extra=cpu_method("model"))

    assert device(report, "cpu").estimated


def test_energy_method_not_exported_is_unknown(tmp_path):
    report = run_report(tmp_path, CPU_RUN)

    assert device(report, "cpu").methods == ()
    assert device(report, "cpu").energy.half_width == 1.0


def test_every_output_marks_estimate(tmp_path):
    frames = run_frames(tmp_path, CPU_RUN, extra=cpu_method("model"))
    report = assess(frames)
    power = power_samples(frames, report)

    text = plain_text(report)
    assert "1,000 J (estimate)" in text
    assert "of which CPU is an estimate" in text
    html = html_page(report, frames, frames.raw, b"")
    assert "CPU is an estimate" in html
    assert html.count(">0.2778 Wh (estimate)") == 1  # the device's row, in the unit of the GPU's
    assert html.count("1,000 J (estimate)") == 1  # its phase's
    assert "<!-- 0.2778 Wh (estimate) -->" in run_plot(report, power, form="svg").decode()
    rows = {row["component"]: row for row in csv.DictReader(io.StringIO(report_csv(report)))}
    assert (rows["cpu"]["estimate"], rows["gpu"]["estimate"]) == ("True", "False")
    assert (rows["cpu"]["energy_method"], rows["cpu"]["energy_uncertainty_joules"]) == ("model", "")
    document = json.loads(as_json(report_document(report)))
    assert document == yaml.safe_load(as_yaml(report_document(report)))
    assert document["energy"]["cpu"] == {
        "energy_joules": 1_000,
        "energy_uncertainty_joules": None,
        "estimate": True,
    }
    assert document["energy"]["gpu"]["estimate"] is False
    assert document["energy"]["together"]["estimate"] is True
    assert document["phases"][0]["estimates"] == ["cpu"]
    assert [e["estimate"] for e in document["emissions"] if e["component"] == "cpu"] == [True]
    assert document["work"]["generated_tokens"]["estimate"] is False  # it is per token of the GPUs
    lines = csv.DictReader(io.StringIO(power_csv(power, report.started_at_s)))
    assert {(line["component"], line["estimate"]) for line in lines} == {
        ("cpu", "True"),
        ("gpu", "False"),
    }
