"""Past intensities from simulated providers, their faults, and the command."""

import json
import socket
import threading
from datetime import UTC, datetime

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline_analyzer.carbon.providers import (
    PastIntensityRequest,
    fetch_past_intensity,
    read_provider_token,
)
from wattline_analyzer.core.emissions import PastSlot

DAY_S = START_S // 86_400 * 86_400
TEN_S = DAY_S + 10 * 3_600


def iso(at_s, form="%Y-%m-%dT%H:%MZ"):
    return datetime.fromtimestamp(at_s, UTC).strftime(form)


def gb_period(begin_s, forecast, actual):
    intensity = {"forecast": forecast, "actual": actual, "index": "moderate"}
    return {"from": iso(begin_s), "to": iso(begin_s + 1_800), "intensity": intensity}


def gb_day(path, _):
    """Return each half hour of the request, with the hours since midnight as g/kWh and one value
    unknown.
    """
    begin, end = (datetime.fromisoformat(text).timestamp() for text in path.split("/")[2:])
    begins = range(int(begin), int(end), 1_800)
    periods = [
        gb_period(t, 500, None if t == TEN_S + 1_800 else (t - DAY_S) / 3_600) for t in begins
    ]
    return Reply(200, json.dumps({"data": periods}).encode())


def request_to(host, provider="gb", **more):
    return PastIntensityRequest(provider, base_url=f"http://{host}", **more)


def test_gb_returns_actual_or_else_forecast_per_half_hour():
    with http_server(gb_day) as (host, requests):
        result = fetch_past_intensity(request_to(host), [], TEN_S + 60, TEN_S + 3_700)

    assert result.problem == ""
    assert result.slots == (
        PastSlot(TEN_S, TEN_S + 1_800, 10.0, "actual"),
        PastSlot(TEN_S + 1_800, TEN_S + 3_600, 500.0, "forecast"),
        PastSlot(TEN_S + 3_600, TEN_S + 5_400, 11.0, "actual"),
    )
    assert requests.paths == [f"/intensity/{iso(TEN_S)}/{iso(TEN_S + 5_400)}"]


def test_gb_month_is_fetched_in_parts_without_gap():
    with http_server(gb_day) as (host, requests):
        result = fetch_past_intensity(request_to(host), [], DAY_S, DAY_S + 30 * 86_400)

    spans_s = [
        datetime.fromisoformat(end).timestamp() - datetime.fromisoformat(begin).timestamp()
        for begin, end in (path.split("/")[2:] for path in requests.paths)
    ]
    assert max(spans_s) <= 14 * 86_400
    assert [slot.start_s for slot in result.slots] == [DAY_S + 1_800 * n for n in range(30 * 48)]


def test_gb_region_does_not_use_actuals_of_country():
    with http_server(gb_day) as (host, requests):
        result = fetch_past_intensity(request_to(host), ["London"], TEN_S, TEN_S + 60)

    assert result.problem == (
        "gb has forecasts but no actuals for its regions, such as London; use the whole country, GB"
    )
    assert requests.paths == []


def test_nodes_in_two_regions_require_a_region():
    assert (
        "in several regions of gb (GB, London)"
        in fetch_past_intensity(
            PastIntensityRequest("gb"), ["GB", "London"], TEN_S, TEN_S + 60
        ).problem
    )


def maps(points, zone="DE"):
    body = {"zone": zone, "temporalGranularity": "hourly", "data": points}
    return lambda _path, _parameters: Reply(200, json.dumps(body).encode())


def test_electricity_maps_sends_token_and_marks_estimates():
    points = [
        {
            "zone": "DE",
            "carbonIntensity": 322,
            "datetime": iso(TEN_S, "%Y-%m-%dT%H:%M:%S.000Z"),
            "isEstimated": False,
        },
        {"zone": "DE", "carbonIntensity": 310, "datetime": iso(TEN_S + 3_600), "isEstimated": True},
        {
            "zone": "DE",
            "carbonIntensity": None,
            "datetime": iso(TEN_S + 7_200),
            "isEstimated": None,
        },
    ]
    with http_server(maps(points)) as (host, requests):
        result = fetch_past_intensity(
            request_to(host, "electricitymaps", token="s3cret"), ["DE"], TEN_S, TEN_S + 7_300
        )

    assert [
        (slot.start_s, slot.end_s, slot.grams_per_kwh, slot.quality) for slot in result.slots
    ] == [
        (TEN_S, TEN_S + 3_600, 322, "actual"),
        (TEN_S + 3_600, TEN_S + 7_200, 310, "estimated"),
    ]
    assert requests.paths == ["/v3/carbon-intensity/past-range"]
    assert requests.headers[0]["auth-token"] == "s3cret"
    assert requests.parameters[0]["zone"] == "DE"


def test_electricity_maps_other_zone_is_rejected():
    points = [{"zone": "FR", "carbonIntensity": 20, "datetime": iso(TEN_S), "isEstimated": False}]
    with http_server(maps(points, "FR")) as (host, _):
        result = fetch_past_intensity(
            request_to(host, "electricitymaps", token="x"), ["DE"], TEN_S, TEN_S + 60
        )

    assert f"http://{host} answered for zone 'FR' instead of DE" in result.problem


def test_electricity_maps_without_token_or_zone_names_remedy():
    assert (
        "--carbon-token-file"
        in fetch_past_intensity(
            PastIntensityRequest("electricitymaps", "DE"), [], TEN_S, TEN_S + 60
        ).problem
    )
    assert (
        "--restate electricitymaps:REGION"
        in fetch_past_intensity(
            PastIntensityRequest("electricitymaps", token="x"), [], TEN_S, TEN_S + 60
        ).problem
    )


def test_energy_charts_returns_quarter_hours_and_forecasts():
    body = {
        "unix_seconds": [int(TEN_S), int(TEN_S) + 900, int(TEN_S) + 1_800],
        "co2eq": [200.5, None, None],
        "co2eq_forecast": [None, 210.0, None],
        "deprecated": False,
    }
    with http_server(lambda *_: Reply(200, json.dumps(body).encode())) as (host, requests):
        result = fetch_past_intensity(
            request_to(host, "energy-charts", region="de"), [], TEN_S, TEN_S + 2_700
        )

    assert result.slots == (
        PastSlot(TEN_S, TEN_S + 900, 200.5, "actual"),
        PastSlot(TEN_S + 900, TEN_S + 1_800, 210.0, "forecast"),
    )
    assert requests.parameters[0] == {
        "country": "de",
        "start": iso(TEN_S),
        "end": iso(TEN_S + 3_600),
    }


def test_provider_bad_slot_is_dropped_and_counted():
    periods = [gb_period(TEN_S, 500, 10), gb_period(TEN_S + 1_800, 500, -1)]
    periods.append(gb_period(TEN_S + 3_600, 500, 11))
    reply = Reply(200, json.dumps({"data": periods}).encode())
    with http_server(lambda *_: reply) as (host, _):
        result = fetch_past_intensity(request_to(host), [], TEN_S, TEN_S + 5_400)

    assert result.slots == (
        PastSlot(TEN_S, TEN_S + 1_800, 10.0, "actual"),
        PastSlot(TEN_S + 3_600, TEN_S + 5_400, 11.0, "actual"),
    )
    assert result.dropped == 1


def test_watttime_restates_marginal_intensities(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("default login joe password netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    def respond(path, parameters):
        if path == "/login":
            return Reply(200, b'{"token": "jwt"}')
        assert (path, parameters["region"]) == ("/v3/historical", "CAISO_NORTH")
        points = [{"point_time": iso(TEN_S), "value": 1_000}]
        meta = {"region": "CAISO_NORTH", "units": "lbs_co2_per_mwh"}
        return Reply(200, json.dumps({"data": points, "meta": meta}).encode())

    with http_server(respond) as (host, requests):
        request = request_to(host, "watttime", token="ada:s3cret")
        result = fetch_past_intensity(request, ["CAISO_NORTH"], TEN_S, TEN_S + 300)

    assert result.basis == "marginal"
    assert [(slot.start_s, slot.end_s, slot.quality) for slot in result.slots] == [
        (TEN_S, TEN_S + 300, "actual")
    ]
    assert result.slots[0].grams_per_kwh == pytest.approx(453.59237)  # g per lb, kWh per MWh
    assert [headers["authorization"] for headers in requests.headers] == [
        "Basic YWRhOnMzY3JldA==",  # printf ada:s3cret | base64
        "Bearer jwt",
    ]


def test_unknown_region_is_one_line_with_remedy():
    request = PastIntensityRequest("energy-charts", "Japan")
    problem = fetch_past_intensity(request, [], TEN_S, TEN_S + 60).problem
    assert problem.startswith("'Japan' is not a country of energy-charts; use one of: al, all")


TRUNCATED = json.dumps({"data": [gb_period(TEN_S, 1, 2)]}).encode()[:-10]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(429, b"{}"), "HTTP 429 Too Many Requests; the next request is sent later"),
        (Reply(500, b"oops"), "HTTP 500"),
        (Reply(403, b"Access denied"), "HTTP 403 Forbidden; check with: curl -i 'http://"),
        (Reply(400, b'{"error":{"code":"400 Bad Request"}}'), "HTTP 400"),
        (Reply(200, b"<html>login</html>", "text/html"), "the body is a web page"),
        (Reply(200, TRUNCATED), "Invalid JSON: EOF while parsing"),
        (Reply(200, b""), "the body is empty"),
        (Reply(200, b"[]"), "cannot parse the response of"),
        (Reply(200, b'{"data": {"a": 1}}'), "cannot parse the response of"),
        (
            Reply(200, json.dumps({"data": [gb_period(TEN_S, 1, "263")]}).encode()),
            "has no intensity of GB for the run's time: data.0.intensity.actual: Input should be",
        ),
        (
            Reply(200, json.dumps({"data": [gb_period(TEN_S, 1, 1e9)]}).encode()),
            "has no intensity of GB for the run's time: data.0.intensity.actual: Input should be",
        ),
        (Reply(200, b'{"data": []}'), "has no intensity of GB"),
    ],
)
def test_provider_invalid_response_is_one_line(reply, expected):
    with http_server(lambda *_: reply) as (host, _):
        result = fetch_past_intensity(request_to(host), [], TEN_S, TEN_S + 60)

    assert result.slots == ()
    assert expected in result.problem
    assert "\n" not in result.problem


def test_provider_unreachable_is_one_line():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, and never listening
        result = fetch_past_intensity(
            request_to(f"127.0.0.1:{bound.getsockname()[1]}"), [], TEN_S, TEN_S + 60
        )

    assert result.problem.startswith("cannot fetch http://127.0.0.1:")
    assert "/intensity: no connection; check with: curl -i" in result.problem


def test_provider_timeout_ends_request():
    go_on = threading.Event()

    def stuck(*_):
        go_on.wait(60)
        return Reply(200, b"{}")

    with http_server(stuck) as (host, _):
        result = fetch_past_intensity(request_to(host, timeout_s=0.3), [], TEN_S, TEN_S + 60)
        go_on.set()

    assert "no response within 0.3 s" in result.problem


def test_token_is_line_of_provider_or_only_line(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("# mine\nwatttime=user:pw\nelectricitymaps=abc123\n")
    monkeypatch.setenv("WATTLINE_CARBON_TOKEN", "from-the-environment")

    assert read_provider_token(path, "electricitymaps") == "abc123"
    assert read_provider_token(None, "electricitymaps") == "from-the-environment"


def steady_run_in(folder):
    """Return a history of 300 W for 20 s, 6,000 J."""
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)])
    run = NodeRun(emissions_g=6_000 / 3.6e6 * 100)
    times = scrape_times(1, START_S - 30.5, START_S + 30)
    return write_history(
        folder, series_of_scrapes((t, scrape([gpu], run, t, intensity=100.0)) for t in times)
    )


def test_report_names_the_number_of_dropped_slots(analyzer, tmp_path):
    slot_s = START_S // 1_800 * 1_800
    periods = [gb_period(slot_s - 1_800, 500, -1), gb_period(slot_s, 500, 200)]
    reply = Reply(200, json.dumps({"data": periods}).encode())
    with http_server(lambda *_: reply) as (host, _):
        options = ("--restate", "gb", "--restate-url", f"http://{host}")
        done = analyzer(*REPORT, "--source", steady_run_in(tmp_path), *options)

    (one,) = json.loads(done.stdout)["restated_emissions"]
    assert one["emissions_grams"] == pytest.approx(6_000 / 3.6e6 * 200, rel=1e-9)
    assert done.stderr == "analyzer: invalid slots of gb were dropped: 1\n"


REPORT = ("report", "--run-id", "train-1", "--since", "36500d", "--format", "json")


def test_report_restates_or_keeps_ledger_emissions(analyzer, tmp_path):
    source = steady_run_in(tmp_path)
    down = threading.Event()

    def respond(path, parameters):
        return Reply(500, b"") if down.is_set() else gb_day(path, parameters)

    with http_server(respond) as (host, _):
        options = (
            *REPORT,
            "--source",
            source,
            "--restate",
            "gb",
            "--restate-url",
            f"http://{host}",
        )
        valid = analyzer(*options)
        down.set()
        bad = analyzer(*options)

    (one,) = json.loads(valid.stdout)["restated_emissions"]
    hours = (START_S // 1_800 * 1_800 - DAY_S) / 3_600  # the provider's value of that half hour
    assert one["emissions_grams"] == pytest.approx(6_000 / 3.6e6 * hours, rel=1e-9)
    assert (bad.returncode, json.loads(bad.stdout)["restated_emissions"]) == (0, [])
    origins = {one["origin"]: one["emissions_grams"] for one in json.loads(bad.stdout)["emissions"]}
    assert origins == {"ledger": 6_000 / 3.6e6 * 100}
    kept = "the report keeps the ledger's emissions"
    url = f"http://{host}/intensity"
    assert bad.stderr == (
        f"analyzer: emissions not restated: cannot fetch {url}: HTTP 500 Internal Server Error; "
        f"check with: curl -i '{url}'; {kept}\n"
    )
    assert "not_restated" in {finding["code"] for finding in json.loads(bad.stdout)["findings"]}
