"""Output and errors of `analyzer report`: formats, files, exit codes."""

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
import yaml

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes, write_history

RUN = ("--run-id", "train-1", "--since", "36500d")


def test_report_table_piped_has_at_most_100_columns(analyzer, steady_history):
    completed = analyzer("report", *RUN, "--source", steady_history)

    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    assert max(len(line) for line in completed.stdout.splitlines()) <= 100
    assert "\x1b" not in completed.stdout
    # 2 x 6,000 J; ± 10 J each are 20 J = 0.0056 Wh, beside the sensors' -2.9 to +6.4 %
    assert "3.33 ± 0.21 Wh" in completed.stdout
    assert "± 0.006 Wh (0.17 %), 95 % CI" in completed.stdout
    assert "-0.097 to +0.21 Wh (6.4 %); the same in every run on a GPU" in completed.stdout
    assert re.search(r"6 min|20\.00 s", completed.stdout)
    assert "12.0 ± 0.8 J per generated token" in completed.stdout
    assert "50.00 generated tokens/s" in completed.stdout


def test_report_json_equals_yaml_with_units_in_keys(analyzer, steady_history):
    read = json.loads(
        analyzer("report", *RUN, "--source", steady_history, "--format", "json").stdout
    )

    assert read == yaml.safe_load(
        analyzer("report", *RUN, "--source", steady_history, "--format", "yaml").stdout
    )
    assert read["energy"]["gpu"]["energy_joules"] == 12_000
    assert read["energy"]["gpu"]["energy_uncertainty_joules"] == 20
    assert read["work"]["generated_tokens"]["energy_per_unit_joules"] == 12
    assert read["devices"][1]["energy_joules"] == 6_000
    assert (
        read["gpu"]["raw_samples_energy_low_joules"]
        <= 12_000
        <= read["gpu"]["raw_samples_energy_high_joules"]
    )
    assert read["emissions"] == []


def test_report_csv_has_one_row_per_device(analyzer, steady_history):
    rows = list(
        csv.DictReader(
            io.StringIO(
                analyzer("report", *RUN, "--source", steady_history, "--format", "csv").stdout
            )
        )
    )

    assert [(row["component"], float(row["energy_joules"])) for row in rows] == [
        ("gpu", 6_000),
        ("gpu", 6_000),
    ]
    assert rows[0]["power_limit_watts"] == "400.0"


@pytest.mark.parametrize("half_j", [None, 25.0], ids=["of an older exporter", "of this one"])
def test_report_phase_has_energy_and_interval(analyzer, tmp_path, half_j):
    run = NodeRun(phases={"measure": (20.0, 6_000.0)}, phase_uncertainty_j=half_j)
    path = write_history(
        tmp_path,
        series_of_scrapes(
            (t, scrape([NodeGpu([(START_S, 300)])], run, t)) for t in [START_S, START_S + 25]
        ),
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
    assert sorted(path.name for path in out.iterdir()) == [
        "metrics.yml",
        "report.html",
        "report.png",
        "timeseries.csv",
    ]
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
    assert (
        yaml.safe_load((out / "metrics.yml").read_text())["energy"]["gpu"]["energy_joules"]
        == 12_000
    )


def test_report_timeseries_is_tidy_in_unix_time(analyzer, steady_history, tmp_path):
    analyzer("report", *RUN, "--source", steady_history, "--out", tmp_path / "out")

    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "timeseries.csv").read_text())))

    first = rows[0]
    assert list(first) == [
        "t_unix_seconds",
        "run_seconds",
        "instance",
        "component",
        "device",
        "label",
        "metric",
        "value",
        "estimate",
    ]
    assert float(first["run_seconds"]) == -60.5
    assert {row["metric"] for row in rows} == {
        "wattline_gpu_power_watts",
        "wattline_gpu_energy_joules_total",
    }
    during = [
        row
        for row in rows
        if row["metric"].endswith("watts") and 0 < float(row["run_seconds"]) < 20
    ]
    assert {row["value"] for row in during} == {"300.0"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["report", "--run-id", "x", "--format", "xml"], "--format: 'xml' is not one of"),
        (
            ["report"],
            (
                "analyzer: no run is named; give its ID, which analyzer runs lists, or --start and "
                "--end of a time range; see analyzer report --help"
            ),
        ),
        (
            ["report", "--run-id", "x", "--since", "soon"],
            "--since: expected a duration above 0 in s, m, h or d",
        ),
        (
            ["report", "--run-id", "x", "--since", "0d"],
            "above 0 in s, m, h or d, such as 30d, not '0d'",
        ),
        (["report", "--run-id", "x", "--since", "1000000d"], "--since: expected at most 100000d"),
        (["report", "--run-id", "x", "--carbon", "-1"], "--carbon"),
        (
            ["report", "--run-id", "train-1", "train-2"],
            "analyzer: unexpected arguments: train-2; see analyzer report --help",
        ),
        (
            ["report", "train-1", "train-2"],
            (
                "expected one run, not train-1 train-2; compare runs with: analyzer compare "
                "train-1 train-2; see analyzer report --help"
            ),
        ),
        (
            ["report", "--run-id", "x", "--price", "0,31"],
            "expected a number with a point, such as 1.3, not '0,31'",
        ),
        (
            ["report", "--run-id", "x", "--pue", "130%"],
            "expected a number with a point, such as 1.3, not '130%'",
        ),
        (
            ["report", "--run-id", "x", "--out", "/dev/null"],
            "--out: /dev/null is not a folder; give a new or existing",
        ),
        (
            ["report", "--start", "-1h", "--end", "2099-01-01T00:00:00Z"],
            "00Z lies in the future; give a time up to",
        ),
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
        (
            ["runs", "--source", "/nowhere"],
            "analyzer: cannot read /nowhere: no such file; give --source",
        ),
        (
            ["runs", "--source", "http://127.0.0.1:9"],
            "analyzer: cannot connect to http://127.0.0.1:9; check",
        ),
        (
            ["runs", "--source", "gopher://x"],
            "analyzer: invalid server address 'gopher://x'; write it as",
        ),
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
    completed = analyzer(
        "report", "--run-id", "resnet", "--source", steady_history, "--since", "36500d"
    )

    assert completed.returncode == 1
    assert "known runs: train-1; see: analyzer runs" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_report_misspelled_run_names_the_similar_run(analyzer, steady_history):
    completed = analyzer(
        "report", "--run-id", "train-2", "--source", steady_history, "--since", "36500d"
    )

    assert completed.returncode == 1
    assert "did you mean train-1? analyzer runs lists all" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_report_unwritable_folder_is_one_line_before_the_report(analyzer, steady_history, tmp_path):
    (tmp_path / "file").write_text("")

    completed = analyzer(
        "report", *RUN, "--source", steady_history, "--out", tmp_path / "file" / "folder"
    )

    assert completed.returncode == 1
    assert completed.stderr.startswith(
        f"analyzer: cannot write to {tmp_path}/file/folder: Not a directory; give --out"
    )
    assert completed.stderr.count("\n") == 1
    assert completed.stdout == ""


def test_report_of_unknown_run_leaves_no_folder(analyzer, steady_history, tmp_path):
    completed = analyzer(
        "report", "--run-id", "no", "--source", steady_history, "--out", tmp_path / "new" / "out"
    )

    assert completed.returncode == 1
    assert not (tmp_path / "new").exists()


def test_source_can_come_from_environment(analyzer, steady_history):
    completed = analyzer("report", *RUN, WATTLINE_SOURCE=str(steady_history))

    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    "options", [("report", *RUN, "--out"), ("export", *RUN, "--format", "csv", "--out")]
)
def test_out_that_cannot_be_looked_up_is_one_line(analyzer, steady_history, tmp_path, options):
    """A name of 300 characters has the effect of a folder without permission: looking it up
    fails.
    """
    completed = analyzer(*options, tmp_path / ("x" * 300), "--source", steady_history)

    assert completed.returncode == 1
    assert completed.stderr.splitlines()[-1].startswith("analyzer: cannot write ")
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    "options",
    [("runs", "--source"), ("import", "--out", "h.sqlite"), ("requests", *RUN, "--requests")],
)
def test_input_that_cannot_be_looked_up_is_one_line(analyzer, steady_history, tmp_path, options):
    source = () if options[0] != "requests" else ("--source", steady_history)

    completed = analyzer(*options, tmp_path / ("x" * 300), *source)

    assert completed.returncode == 1
    assert completed.stderr.splitlines()[-1].startswith("analyzer: cannot read ")
    assert "Traceback" not in completed.stderr
