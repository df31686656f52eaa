"""Fleet sums from recording rules and in parts, refusals, and the command's output."""

import json
import re
import urllib.request
from urllib.parse import urlencode

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.small_fleet import BEGIN_S, END_S, LATE_S, fetch_small_fleet, groups_by_keys
from wattline_analyzer.core.sources.base import FetchError


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def address(request, fleet_addresses):
    return fleet_addresses[request.param]


@pytest.mark.parametrize("by", ["model,user", "node"])
def test_fetch_fleet_rules_equal_raw_samples(address, by):
    recorded = fetch_small_fleet(address, by, rules=True)
    raw = fetch_small_fleet(address, by, start_s=recorded.means.start_s, end_s=recorded.means.end_s)

    assert (recorded.means.by, raw.means.by) == ("recording rules", "raw samples")
    assert abs(recorded.means.start_s - BEGIN_S) <= 300
    assert recorded.device_j == pytest.approx(raw.device_j, rel=1e-3)
    assert {
        keys: group.energy_j for keys, group in groups_by_keys(recorded).items()
    } == pytest.approx(
        {keys: group.energy_j for keys, group in groups_by_keys(raw).items()}, rel=1e-6
    )
    assert recorded.excess_ratio == pytest.approx(0, abs=1e-3)


def test_fetch_fleet_rules_starting_in_window_are_not_used(address):
    result = fetch_small_fleet(address, "model", start_s=BEGIN_S - 4_100, rules=True)

    assert result.means.by == "raw samples"
    assert result.means.why_not_rules == "the recording rules start later than the window"


def test_fetch_fleet_in_parts_counts_run_over_borders_once(fleet_addresses):
    """The server accepts at most 40 minutes per query and forwards to a real one."""
    complete = fetch_small_fleet(fleet_addresses["victoria-metrics"], "model,user")

    def respond(path, parameters):
        spans = [
            int(text.split("ms]")[0])
            for text in parameters["query"].split("[")[1:]
            if "ms]" in text
        ]
        if max(
            [span for span in spans if span not in (7_200_000, 10_800_000)], default=0
        ) > 2_400_000 or (
            "increase(" in parameters["query"] and "[7200000ms]" in parameters["query"]
        ):
            reason = "query processing would load too many samples into memory in query execution"
            return Reply(
                422,
                json.dumps({"status": "error", "errorType": "execution", "error": reason}).encode(),
            )
        url = f"{fleet_addresses['victoria-metrics']}{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url) as answer:
            return Reply(200, answer.read())

    messages = []
    with http_server(respond) as (target, _):
        result = fetch_small_fleet(f"http://{target}", "model,user", say=messages.append)

    assert result.means.spans == 4
    assert "retrying in 4 parts" in messages[-1]
    assert {
        keys: group.energy_j for keys, group in groups_by_keys(result).items()
    } == pytest.approx({keys: group.energy_j for keys, group in groups_by_keys(complete).items()})
    assert result.device_j == pytest.approx(complete.device_j, rel=1e-3)
    assert {group.keys: group.runs for group in result.groups} == {
        group.keys: group.runs for group in complete.groups
    }


def test_fetch_fleet_refusing_server_is_one_line(fleet_addresses):
    def respond(path, parameters):
        if "[" not in parameters["query"]:
            return Reply(
                422, b'{"status":"error","errorType":"bad_data","error":"unknown function"}'
            )
        return Reply(
            503,
            b'{"status":"error","errorType":"timeout","error":"query timed out in expression '
            b'evaluation"}',
        )

    with (
        http_server(respond) as (target, _),
        pytest.raises(FetchError, match=r"refuses even .* min .*deploy/prometheus"),
    ):
        fetch_small_fleet(f"http://{target}", "model")


def test_fetch_fleet_result_size_is_independent_of_window(address):
    short, long = (
        fetch_small_fleet(address, "user", start_s=END_S - back_s).means
        for back_s in (3_600, 7_200)
    )

    assert long.asked == short.asked
    assert long.moved_bytes <= 1.15 * short.moved_bytes
    assert long.moved_bytes < 40_000


def test_fleet_command_shows_groups_rest_and_check(address, analyzer):
    completed = analyzer(
        "fleet",
        "--source",
        address,
        "--until",
        END_S,
        "--since",
        "2h",
        "--by",
        "model,user",
        "--top",
        2,
    )

    assert completed.returncode == 0, completed.stderr
    assert re.search(r"^m1 +u1 +1 +0\.\d{4} kWh +\d\d\.\d % ", completed.stdout, re.MULTILINE)
    assert "(4 more)" in completed.stdout
    assert "(no run)" in completed.stdout
    assert "source: recording rules" in completed.stdout
    assert max(map(len, completed.stdout.splitlines())) < 250


def test_fleet_command_unknown_label_is_reported(address, analyzer):
    completed = analyzer(
        "fleet", "--source", address, "--until", END_S, "--since", "2h", "--by", "modle,user"
    )

    assert completed.stderr == (
        "analyzer: no run in the window has the label modle; --by accepts model, namespace, user, "
        "workload, kind, "
        "node, gpu_model\n"
    )


def test_fleet_command_window_without_runs_is_reported(address, analyzer):
    completed = analyzer(
        "fleet", "--source", address, "--until", END_S + 590, "--since", "3m", "--by", "modle"
    )

    assert (
        completed.stderr
        == "analyzer: no run was active in the window; the energy of its devices is shown as (no "
        "run)\n"
    )
    assert "(no run)" in completed.stdout


def test_fleet_command_json_has_units_and_csv_rows_per_group(address, analyzer):
    call = [
        "fleet",
        "--source",
        address,
        "--until",
        END_S,
        "--since",
        "2h",
        "--by",
        "model",
        "--no-rules",
    ]
    document = json.loads(analyzer(*call, "--format", "json").stdout)
    rows = analyzer(*call, "--format", "csv").stdout.splitlines()

    by_model = {row["model"]: row for row in document["groups"]}
    assert by_model["m3"]["energy_joules"] == 2_200
    assert by_model["m2"]["work"]["prompt_tokens"]["amount"] == 540_000
    assert document["from"] == "raw samples"
    assert document["devices"]["gpu_energy_joules"] > 0
    assert rows[0].startswith("model,runs,energy_joules,gpu_energy_joules,")
    assert len(rows) == 1 + 3 + 1


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 1, "no source found: no exporter's history at http://127.0.0.1:1,"),
        (("--source", "/nowhere"), 1, "cannot read /nowhere: no such file"),
        (
            ("--since", "2026-11-02T00:00Z", "--until", "2026-11-01T00:00Z"),
            2,
            "--since: 2026-11-02T00:00Z is not before",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--by", "model user"),
            2,
            "--by: expected labels of runs",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--until", "soon"),
            2,
            "--until: 'soon' is neither a date nor a Unix time",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--policy", "mine"),
            2,
            "--policy: expected idle_shared or idle_apart",
        ),
        (("--source", "http://127.0.0.1:1"), 1, "cannot connect to http://127.0.0.1:1"),
    ],
)
def test_fleet_command_invalid_request_is_one_line(analyzer, arguments, code, expected):
    completed = analyzer("fleet", *arguments, WATTLINE_EXPORTER="http://127.0.0.1:1")

    assert completed.returncode == code
    assert expected in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_fleet_command_window_without_samples_is_an_error(address, analyzer):
    completed = analyzer("fleet", "--source", address, "--until", BEGIN_S - 90_000, "--since", "1h")

    assert completed.returncode == 1
    assert "no samples of wattline_gpu_energy_joules_total" in completed.stderr
    assert completed.stdout == ""


def test_fleet_command_marks_simulated_gpus_of_the_window(address, analyzer):
    command = ("fleet", "--source", address, "--by", "model", "--format", "json")
    late, before = (
        analyzer(*command, "--until", until_s, "--since", since)
        for until_s, since in ((LATE_S + 300, "10m"), (END_S, "2h"))
    )

    assert [json.loads(one.stdout)["simulated"] for one in (late, before)] == [True, False]
