"""`analyzer requests` on a history file of a simulated server whose true joules are known."""

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.analyzer.node import START_S
from tests.analyzer.requests.server import records
from tests.exporter.requests.division.proration import by_time


@pytest.fixture
def document(report, requests_file):
    """Return the JSON document of the run."""
    return lambda *arguments: read(report(requests_file, *arguments, "--format", "json"))


@pytest.fixture
def document_of_range(call, history, requests_file, end_s):
    """Return the JSON document of the time range of the run."""
    command = (
        "requests",
        "--source",
        history,
        "--start",
        START_S,
        "--end",
        end_s,
        "--requests",
        requests_file,
    )
    return lambda *arguments: read(call(*command, *arguments, "--format", "json"))


def read(completed):
    code, out, err = completed
    assert code == 0, err
    return json.loads(out)


def test_requests_and_rest_add_up_to_the_true_energy(document, true_j, served):
    found = document("--by", "user", "--price", "0.5", "--carbon", "300")

    assert found["measured_energy_joules"] == pytest.approx(true_j, rel=1e-4)
    groups = {group["user"]: group for group in found["groups"]}
    assert groups.keys() == {"ann", "bob"}
    total_j = sum(group["energy_joules"] for group in groups.values())
    assert total_j == pytest.approx(found["requests_energy_joules"])
    assert total_j + found["rest_energy_joules"] == pytest.approx(
        found["measured_energy_joules"], rel=1e-9
    )
    assert sum(group["requests"] for group in groups.values()) == len(served.spans)
    assert groups["ann"]["cost"] == pytest.approx(0.5 * groups["ann"]["energy_joules"] / 3.6e6)
    assert groups["ann"]["emissions_grams"] == pytest.approx(
        300 * groups["ann"]["energy_joules"] / 3.6e6
    )


def test_figures_of_groups_have_the_half_widths_of_their_requests(
    document, report, requests_file, tmp_path
):
    """The median of the energies is between the medians of the lower and of the upper ends of their
    intervals.
    """
    rows = tmp_path / "rows.csv"
    found = document("--by", "user", "--price", "0.5", "--carbon", "300", "--out", rows)

    with rows.open(newline="") as file:
        all_rows = list(csv.DictReader(file))
    for group in found["groups"]:
        own = [row for row in all_rows if row["label_user"] == group["user"]]
        joules, half_j = (
            np.array([float(row[f"energy{name}_joules"]) for row in own])
            for name in ("", "_uncertainty")
        )
        for p in (50, 95, 99):
            low, value, high = (
                np.percentile(each, p) for each in (joules - half_j, joules, joules + half_j)
            )
            assert group[f"request_p{p}_joules"] == pytest.approx(value)
            assert group[f"request_p{p}_uncertainty_joules"] == pytest.approx(
                max(value - low, high - value)
            )
        kwh = group["energy_uncertainty_joules"] / 3.6e6
        assert group["cost_uncertainty"] == pytest.approx(0.5 * kwh)
        assert group["emissions_uncertainty_grams"] == pytest.approx(300 * kwh)
    halves_j = [group["energy_uncertainty_joules"] for group in found["groups"]]
    assert max(halves_j) / 10 < found["requests_energy_uncertainty_joules"] < sum(halves_j)
    assert found["rest_energy_uncertainty_joules"] >= found["requests_energy_uncertainty_joules"]


def test_requests_are_closer_to_shapley_values_than_by_time_in_flight(
    report, requests_file, served, tmp_path
):
    rows = tmp_path / "rows.csv"

    code, _, err = report(requests_file, "--policy", "idle_apart", "--out", rows)

    assert code == 0, err
    with rows.open(newline="") as file:
        found = list(csv.DictReader(file))
    energy = np.array([float(row["energy_joules"]) for row in found])
    half = np.array([float(row["energy_uncertainty_joules"]) for row in found])
    assert (np.diff(energy) <= 0).all(), "the most expensive requests first"
    order = {record["id"]: place for place, record in enumerate(records(served))}
    places = np.argsort([order[row["id"]] for row in found])
    energy, half = energy[places], half[places]
    shapley_j = served.shapley_j
    slots = served.slots(1.0, np.random.default_rng(0), noise_w=0.0)
    error, time_error = (
        np.abs(one - shapley_j).mean() for one in (energy, by_time(served.spans, slots))
    )
    assert error < 0.5 * time_error
    assert np.mean(np.abs(energy - shapley_j) <= half) >= 0.8, (
        "errors of one server are not independent"
    )


def test_table_names_the_most_expensive_requests_first(report, requests_file):
    code, out, err = report(requests_file, "--top", "3")

    assert code == 0, err
    assert "Requests with the most energy, 3 of" in out
    assert "run server-1:" in out
    figure = r"[\d.,]+ ± [\d.,]+ (\w+)"
    sums = re.search(f"energy of the GPUs {figure}: requests {figure}, rest {figure}", out)
    assert sums is not None
    assert len(set(sums.groups())) == 1, "figures that add up have one unit"


def test_idle_energy_of_requests_is_in_the_rest_with_idle_apart(document):
    shared, apart = document(), document("--policy", "idle_apart")

    assert apart["rest_energy_joules"] > shared["rest_energy_joules"]
    total_j = apart["requests_energy_joules"] + apart["rest_energy_joules"]
    assert total_j == pytest.approx(shared["measured_energy_joules"], rel=1e-9)


def test_time_range_without_a_run_gives_the_energies_of_the_run(document, document_of_range):
    of_range, of_run = document_of_range(), document()

    assert of_range["run_id"] is None
    for name in (
        "measured_energy_joules",
        "requests_energy_joules",
        "energy_per_generated_token_joules",
    ):
        assert of_range[name] == pytest.approx(of_run[name], rel=0.01)


def test_half_of_the_gpus_have_half_of_the_energy(document_of_range, true_j):
    assert document_of_range("--gpus", "1")["measured_energy_joules"] == pytest.approx(
        true_j / 2, rel=0.01
    )


def test_roles_add_up_to_the_energy_of_all_gpus(document, true_j):
    found = document("--role", "prefill=0", "--role", "decode=1")

    assert found["measured_energy_joules"] == pytest.approx(true_j, rel=0.01)
    total_j = found["requests_energy_joules"] + found["rest_energy_joules"]
    assert total_j == pytest.approx(found["measured_energy_joules"], rel=1e-9)
    assert found["prefill_energy_joules"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--role", "prefill=0"],
            "--role: expected both prefill=0,1 and decode=2,3, with different GPUs",
        ),
        (["--role", "prefill=0", "--role", "decode=0"], "--role: expected both"),
        (["--role", "prefill=0", "--role", "decode=7"], "GPU 7 is not known; known GPUs: 0, 1"),
        (
            ["--start", "100000001", "--end", "100000002"],
            "no samples of the run are in the time from 1973-03-03T",
        ),
        (["--start", "2999-01-01"], "--start is in the future; give a time up to now"),
        (["--start", "2026-01-01", "--end", "2025-01-01"], "--end is not after --start"),
        (["--start", START_S, "--end", START_S + 1], "no request ended in the time from 2026-09-"),
        (
            ["--by", "usr"],
            "--by usr: no request has this label; they have user, and length is always possible",
        ),
    ],
)
def test_invalid_range_or_role_is_named(report, requests_file, arguments, message):
    code, _, err = report(requests_file, *arguments)

    assert code != 0
    assert message in " ".join(err.replace("│", " ").split())


def test_requests_without_options_name_the_run_and_the_time_range(call):
    code, _, err = call("requests")

    assert code != 0
    message = " ".join(err.replace("│", " ").split())
    assert "give its ID, which analyzer runs lists, or --start and --end of a time range" in message
    assert "not both" not in message


def test_part_of_a_run_has_the_energy_of_its_time(document, served, end_s):
    middle_s = (START_S + end_s) / 2

    parts = document("--end", middle_s), document("--start", middle_s)
    whole = document()

    total_j = sum(each["measured_energy_joules"] for each in parts)
    slot_j = whole["measured_energy_joules"] / (end_s - START_S)
    assert total_j == pytest.approx(whole["measured_energy_joules"], abs=10 * slot_j)
    part = (
        r"a part of \d+ s counts: 2026-\d\d-\d\dT[\d:]+[+-]\d\d:\d\d to "
        r"2026-\d\d-\d\dT[\d:]+[+-]\d\d:\d\d"
    )
    assert all(any(re.fullmatch(part, note) for note in each["notes"]) for each in parts)
    counts = [each["groups"][0]["requests"] for each in parts]
    assert max(counts) < len(served.spans) <= sum(counts), (
        "requests in progress at the middle are in both parts"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.json", "unknown format .json; give a folder, or a .csv or .parquet file"),
        ("lb.txt", "unknown format .txt"),
        ("photos", "it has files of something else; give a new folder as --out"),
    ],
)
def test_out_that_is_no_output_of_requests_is_refused(
    report, requests_file, tmp_path, name, message
):
    out = tmp_path / name
    if not out.suffix:
        out.mkdir()
        (out / "cat.jpg").touch()

    code, _, err = report(requests_file, "--out", out)

    assert code == 1
    assert message in " ".join(err.split())
    assert not (out / "requests.html").exists()


def test_few_samples_with_requests_name_what_has_the_energy(report, served, tmp_path):
    path, first = tmp_path / "one.json", records(served)[0]
    end_s = first["started_at"] + 2.0
    path.write_text(
        json.dumps([first | {"first_token_at": first["started_at"] + 0.1, "ended_at": end_s}])
    )

    code, _, err = report(path)

    assert code == 1
    message = " ".join(err.split())
    assert (
        "samples of energy during requests, at least 6 are needed; measure a longer load, or "
        "report requests" in message
    )
    assert "ask it before it stops: GET /api/v1/requests/ID" in message


def test_groups_by_length_add_up_to_all_requests(document, served):
    groups = document("--by", "length")["groups"]

    short = int(np.count_nonzero(served.spans.generated_tokens <= 32))
    assert {group["length"]: group["requests"] for group in groups}["up to 32"] == short
    order = ["up to 32", "33 to 128", "129 to 512", "513 to 2,048", "above 2,048"]
    assert [group["length"] for group in groups] == order[: len(groups)]
    assert sum(group["requests"] for group in groups) == len(served.spans)


def test_out_folder_has_the_page_the_plot_and_a_row_for_each_request(
    report, requests_file, served, tmp_path
):
    folder = tmp_path / "out"

    code, _, err = report(requests_file, "--by", "user", "--price", "0.3", "--out", folder)

    assert code == 0, err
    rows = pd.read_parquet(folder / "requests.parquet")
    assert len(rows) == len(served.spans)
    assert rows["energy_joules"].is_monotonic_decreasing
    page = (folder / "requests.html").read_text()
    assert rows["id"][0] in page
    most = page[page.index("Requests with the most energy") :]
    assert re.search(r"<th[^>]*>(\s|<[^>]*>)*user", most)
    assert re.search(r'<td class="text word"[^>]*>(ann|bob)</td>', most)
    assert "http" not in page.replace("http-equiv", "")
    assert (folder / "requests.png").read_bytes().startswith(b"\x89PNG")
    assert "replaced" not in err

    _, _, err = report(requests_file, "--by", "user", "--out", folder)

    assert "; replaced the earlier requests.html, requests.png, requests.parquet" in " ".join(
        err.split()
    )
