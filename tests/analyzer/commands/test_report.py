"""Output of reports and errors: units, formats, files, exit codes."""

import base64
import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml

from analyzer.model.interval import Interval
from analyzer.output import units
from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes, write_history
from wattline.client import figures

RUN = ("--run-id", "train-1", "--since", "36500d")


@pytest.mark.parametrize(
    ("value_j", "half_j", "expected"),
    [
        (950, 12, "950 ± 12 J"),
        (950, 4.2, "950 ± 4 J"),
        (3_599, None, "3,599 J"),
        (3_600, 36, "1.000 ± 0.010 Wh"),
        (12_345, 180, "3.43 ± 0.05 Wh"),
        (3.6e6, 3_600, "1.0000 ± 0.0010 kWh"),
        (7.2e9, 3.6e7, "2,000 ± 10 kWh"),
        (0, None, "0 J"),
        (0, 3, "0 ± 3 J"),
    ],
)
def test_energy_text_has_fitting_unit_and_digits(value_j, half_j, expected):
    assert units.energy(Interval(value_j, half_j)) == expected


def test_energy_text_is_rounded_to_random_and_systematic_error():
    """3.7 J and 610 J are 610 J together, of which one digit is known."""
    read = Interval(6_160, 3.7, systematic=(-180.0, 610.0))

    assert (read.half, read.total_half) == (3.7, pytest.approx(610.0, abs=0.02))
    assert units.energy(read) == "1.71 ± 0.17 Wh"
    assert units.energy(read.scaled(0.5)) == "3,100 ± 300 J"
    assert units.energy(read, half=False) == "1.71 Wh"
    assert units.energy_per_unit(read.scaled(1e-6), "steps", half=False) == "6.2 mJ per step"
    assert (units.random_error(read), units.systematic_error(read)) == (
        "± 0.0010 Wh (0.060 %)",
        "-0.050 to +0.17 Wh (9.9 %)",
    )


@pytest.mark.parametrize("value", [0.0, 3.08, 99.96, 950.0, 1234.5, 98_765.0, 12_345_678.0])
@pytest.mark.parametrize("half", [0.0123, 0.3, 2.96, 37.0, 610.0, 4_200.0])
def test_figures_of_the_client_are_rounded_as_those_of_the_analyzer(value, half):
    assert figures.with_half(value, half) == units.plain(value, half)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.energy_bound(Interval(3_480, limits=(3_010, 3_950))), "3,480 J (3,010 to 3,950)"),
        (units.energy_per_unit(Interval(0.0467, 0.0002), "generated_tokens"), "46.70 ± 0.20 mJ per generated token"),
        (units.energy_per_unit(Interval(2.5e-11), "flop"), "25.00 pJ per flop"),
        (units.energy_per_unit(Interval(7_200, 36), "steps"), "2.000 ± 0.010 Wh per step"),
        (units.amount(812_345, "generated_tokens"), "812,345 generated tokens"),
        (units.amount(1.5e15, "flop"), "1,500 Tflop"),
        (units.amount(12_345.5, "images"), "12,346 images"),
        (units.amount(9_999.99, "images"), "10,000 images"),
        (units.amount(2.5, "epochs"), "2.5 epochs"),
        (units.rate(1.234e13, "flop"), "12.34 Tflop/s"),
        (units.rate(50, "requests"), "50.00 requests/s"),
        (units.mass(Interval(0.3833, 0.0006)), "383.3 ± 0.6 mg CO₂eq"),
        (units.mass(Interval(12_345, 100)), "12.35 ± 0.10 kg CO₂eq"),
        (units.power(Interval(12_345, 20)), "12.345 ± 0.020 kW"),
        (units.duration(9.876), "9.88 s"),
        (units.duration(125.34), "2 min 5.3 s"),
        (units.duration(3_723), "1 h 2 min 3 s"),
        (units.percent(0.981), "98.1 %"),
        (units.percent(1), "100 %"),
    ],
)
def test_report_table_numbers_have_units(text, expected):
    assert text == expected


def test_report_table_piped_has_at_most_100_columns(analyzer, steady_history):
    completed = analyzer("report", *RUN, "--source", steady_history)

    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    assert max(len(line) for line in completed.stdout.splitlines()) <= 100
    assert "\x1b" not in completed.stdout
    assert "3.33 ± 0.21 Wh" in completed.stdout  # 2 x 6,000 J; 10 J each add up, and the sensors' -2.9 to +6.4 %
    assert "± 0.0056 Wh (0.17 %), 95 % CI" in completed.stdout
    assert "-0.097 to +0.21 Wh (6.4 %); the same in every run on a GPU" in completed.stdout
    assert re.search(r"6 min|20\.00 s", completed.stdout)
    assert "12.0 ± 0.8 J per generated token" in completed.stdout
    assert "50.00 generated tokens/s" in completed.stdout


def test_report_json_equals_yaml_with_units_in_keys(analyzer, steady_history):
    read = json.loads(analyzer("report", *RUN, "--source", steady_history, "--format", "json").stdout)

    assert read == yaml.safe_load(analyzer("report", *RUN, "--source", steady_history, "--format", "yaml").stdout)
    assert read["energy"]["gpu"]["energy_joules"] == 12_000
    assert read["energy"]["gpu"]["energy_uncertainty_joules"] == 20.0
    assert read["work"]["generated_tokens"]["energy_per_unit_joules"] == 12
    assert read["devices"][1]["energy_joules"] == 6_000
    assert read["gpu"]["raw_samples_energy_low_joules"] <= 12_000 <= read["gpu"]["raw_samples_energy_high_joules"]
    assert read["emissions"] == []


def test_report_csv_has_one_row_per_device(analyzer, steady_history):
    rows = list(
        csv.DictReader(io.StringIO(analyzer("report", *RUN, "--source", steady_history, "--format", "csv").stdout))
    )

    assert [(row["component"], float(row["energy_joules"])) for row in rows] == [("gpu", 6_000), ("gpu", 6_000)]
    assert rows[0]["power_limit_watts"] == "400.0"


def test_runs_lists_newest_first_in_each_format(analyzer, steady_history):
    where = ("--source", steady_history, "--since", "36500d")
    (read,) = json.loads(analyzer("runs", *where, "--format", "json").stdout)

    assert read["run_id"] == "train-1"
    assert read["state"] == "ok"
    assert read["gpu_energy_joules"] == 12_000
    assert read["labels"] == {"model": "tiny"}
    (row,) = csv.DictReader(io.StringIO(analyzer("runs", *where, "--format", "csv").stdout))
    assert row["labels"] == '{"model": "tiny"}'
    table = analyzer("runs", *where).stdout
    assert "3.33 ± 0.21 Wh" in table
    assert "model=tiny" in table


def history_of(folder, run):
    gpu = NodeGpu([(START_S, 300)])
    return write_history(folder, series_of_scrapes((t, scrape([gpu], run, t)) for t in [START_S, START_S + 25]))


def test_runs_piped_shows_whole_ids_and_labels(analyzer, tmp_path):
    run_id, label = "llama-3.3-70b-instruct-awq-tensor-parallel-8-0123456789abcdef", "x" * 128
    run = NodeRun(run_id=run_id, labels={f"label_number_{n}": label for n in range(4)})
    path = write_history(
        tmp_path, series_of_scrapes((t, scrape([NodeGpu([(START_S, 300)])], run, t)) for t in [START_S, START_S + 25])
    )

    table = analyzer("runs", "--source", path, "--since", "36500d").stdout

    assert len(table.splitlines()) == 2  # the heading and the run
    assert run_id in table
    assert all(f"label_number_{n}={label}" in table for n in range(4))
    assert "…" not in table
    assert "\x1b" not in table


@pytest.mark.parametrize("half_j", [None, 25.0], ids=["of an older exporter", "of this one"])
def test_report_phase_has_energy_and_interval(analyzer, tmp_path, half_j):
    run = NodeRun(phases={"measure": (20.0, 6_000.0)}, phase_uncertainty_j=half_j)
    path = write_history(
        tmp_path, series_of_scrapes((t, scrape([NodeGpu([(START_S, 300)])], run, t)) for t in [START_S, START_S + 25])
    )

    read = json.loads(analyzer("report", *RUN, "--source", path, "--format", "json").stdout)

    assert read["phases"] == [
        {
            "name": "measure",
            "duration_seconds": 20.0,
            "energy_joules": {"gpu": 6_000.0},
            "energy_uncertainty_joules": {"gpu": half_j},
            "estimates": [],
        }
    ]


class Links(HTMLParser):
    """Collect the resources that a page loads, and its text."""

    def __init__(self):
        super().__init__()
        self.links, self.texts = [], []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in {"src", "srcset", "href"}]

    def handle_data(self, data):
        self.texts.append(data)


def test_report_out_files_are_complete_and_self_contained(analyzer, steady_history, tmp_path):
    out = tmp_path / "new" / "folder"

    completed = analyzer("report", *RUN, "--source", steady_history, "--out", out)

    assert completed.returncode == 0, completed.stderr
    assert sorted(path.name for path in out.iterdir()) == ["metrics.yml", "report.html", "report.png", "timeseries.csv"]
    page = Links()
    text = (out / "report.html").read_text()
    page.feed(text)
    (picture,) = [link for link in page.links if not link.startswith("#")]
    assert picture.startswith("data:image/png;base64,")
    assert base64.b64decode(picture.partition(",")[2]) == (out / "report.png").read_bytes()
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((out / "metrics.yml").read_text())["energy"]["gpu"]["energy_joules"] == 12_000


def test_report_timeseries_is_tidy_in_unix_time(analyzer, steady_history, tmp_path):
    analyzer("report", *RUN, "--source", steady_history, "--out", tmp_path / "out")

    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "timeseries.csv").read_text())))

    first = rows[0]
    assert list(first) == [
        "t_unix_seconds", "run_seconds", "instance", "component", "device", "label", "metric", "value",
        "estimate",
    ]  # fmt: skip
    assert float(first["run_seconds"]) == -60.5
    assert {row["metric"] for row in rows} == {"wattline_gpu_power_watts", "wattline_gpu_energy_joules_total"}
    during = [row for row in rows if row["metric"].endswith("watts") and 0 < float(row["run_seconds"]) < 20]
    assert {row["value"] for row in during} == {"300.0"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["report", "--run-id", "x", "--format", "xml"], "'--format': 'xml' is not one of"),
        (["report"], "--run-id"),
        (["report", "--run-id", "x", "--since", "soon"], "--since: expected a duration above 0 in s, m, h or d"),
        (["report", "--run-id", "x", "--since", "0d"], "above 0 in s, m, h or d, such as 30d, not '0d'"),
        (["report", "--run-id", "x", "--since", "1000000d"], "--since: expected at most 100000d"),
        (["report", "--run-id", "x", "--carbon", "-1"], "--carbon"),
        (["report", "--run-id", "train-1", "train-2"], "report: Got unexpected extra argument"),
        (["report", "train-1", "train-2"], "report: Got unexpected extra argument"),
        (["report", "--run-id", "x", "--price", "0,31"], "expected a number with a point, such as 1.3, not '0,31'"),
        (["report", "--run-id", "x", "--pue", "130%"], "expected a number with a point, such as 1.3, not '130%'"),
        (["report", "--run-id", "x", "--out", "/dev/null"], "--out: /dev/null is not a folder; give a new or existing"),
        (["report", "--start", "-1h", "--end", "2099-01-01T00:00:00Z"], "00Z lies in the future; give a time up to"),
        (["report", "--run-id", "x", "--colour"], "--colour"),
        (["runs", "--basic-auth", "alice"], "--basic-auth: expected USER:PASSWORD-FILE"),
        (["walk"], "walk"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(analyzer, arguments, expected):
    completed = analyzer(*arguments)

    assert completed.returncode == 2
    assert completed.stdout == ""
    assert expected in completed.stderr
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["runs", "--source", "/nowhere"], "analyzer: cannot read /nowhere: no such file; give --source"),
        (
            ["runs", "--source", "http://127.0.0.1:9"],
            "analyzer: cannot connect to http://127.0.0.1:9; check",
        ),
        (["runs", "--source", "gopher://x"], "analyzer: invalid server address 'gopher://x'; write it as"),
    ],
)
def test_bad_source_is_one_line_with_remedy_and_exit_code_1(analyzer, arguments, expected):
    completed = analyzer(*arguments)

    assert completed.returncode == 1
    assert completed.stderr.startswith(expected)
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize("position", [1, 3])
def test_report_takes_the_run_id_as_argument(analyzer, steady_history, position):
    arguments = ["report", "--source", str(steady_history), "--format", "csv"]
    arguments.insert(position, "nowhere")
    completed = analyzer(*arguments)

    assert completed.returncode == 1
    assert "no run 'nowhere' at" in completed.stderr


def test_report_unknown_run_names_known_runs(analyzer, steady_history):
    completed = analyzer("report", "--run-id", "resnet", "--source", steady_history, "--since", "36500d")

    assert completed.returncode == 1
    assert "known runs: train-1; see: analyzer runs" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_report_misspelled_run_names_the_similar_run(analyzer, steady_history):
    completed = analyzer("report", "--run-id", "train-2", "--source", steady_history, "--since", "36500d")

    assert completed.returncode == 1
    assert "did you mean train-1? analyzer runs lists all" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_report_unwritable_folder_is_one_line(analyzer, steady_history, tmp_path):
    (tmp_path / "file").write_text("")

    completed = analyzer("report", *RUN, "--source", steady_history, "--out", tmp_path / "file" / "folder")

    assert completed.returncode == 1
    assert completed.stderr.startswith(f"analyzer: cannot write to {tmp_path}/file/folder: Not a directory; give --out")


def test_source_can_come_from_environment(analyzer, steady_history):
    completed = analyzer("report", *RUN, WATTLINE_SOURCE=str(steady_history))

    assert completed.returncode == 0, completed.stderr


def test_importing_cli_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    code = f"import sys, analyzer.cli; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    loaded = f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))"
    code = f"import atexit, sys; {loaded}; sys.argv[1:] = ['--help']; from analyzer.cli import main; main()"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.endswith("\n[]\n")
