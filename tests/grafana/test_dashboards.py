"""Dashboard files: generated, consistent with the contract, and without overlapping panels."""

import json
from itertools import combinations

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.board import as_json
from grafana.boards import BOARDS
from tests.grafana.promql import GRAFANA, PRICE, STEP_MS, meaning
from tests.grafana.query import DASHBOARDS, boards, fill_variables, panel, panels

UIDS = sorted(boards())
QUERIES = [
    pytest.param(each, target, id=f"{uid}-{each['title']}-{target['refId']}".replace(" ", "_"))
    for uid, board in boards().items()
    for each in panels(board)
    for target in each["targets"]
]


def read(target):
    return meaning(fill_variables(target["expr"], run="a-run", price=PRICE, __interval_ms=STEP_MS))


def organize_options(panel):
    return next(step["options"] for step in panel["transformations"] if step["id"] == "organize")


def test_dashboard_files_match_the_generator():
    assert {board.uid for board in BOARDS} == set(UIDS)
    for board in BOARDS:
        assert (DASHBOARDS / f"{board.uid}.json").read_text() == as_json(board), (
            "try: python -m grafana"
        )


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_query_follows_the_contract(panel, target):
    assert read(target).dimension is not None


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_panel_unit_matches_its_query(panel, target):
    defaults, custom = panel["fieldConfig"]["defaults"], panel["fieldConfig"].get("overrides", [])
    unit = defaults["unit"]
    if "transformations" in panel:
        names = organize_options(panel)["renameByName"]
        column = names.get(f"Value #{target['refId']}", names.get("Value"))
        units = {each["matcher"]["options"]: each["properties"][0]["value"] for each in custom}
        unit = units.get(column, unit)
    dimension, scale = read(target).unit()
    if unit == "short" and "price" in target["expr"]:
        assert (dimension, scale) == ({"money": 1}, pytest.approx(1))
    else:
        assert (dimension, scale) == (GRAFANA[unit][0], pytest.approx(GRAFANA[unit][1]))


@pytest.mark.parametrize("uid", UIDS)
def test_panels_do_not_overlap_and_fit_the_width(uid):
    places = [each["gridPos"] for each in boards()[uid]["panels"]]

    for one, other in combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
    assert all(place["x"] + place["w"] <= 24 for place in places)


@pytest.mark.parametrize("uid", UIDS)
def test_panel_has_id_description_and_selected_source(uid):
    board = boards()[uid]

    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    assert board["description"].endswith((".", "`."))
    assert "datasource" in [each["name"] for each in board["templating"]["list"]]
    for each in panels(board):
        assert each["description"].endswith("."), each["title"]
        for asking in (each, *each["targets"]):
            assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("uid", UIDS)
def test_query_variables_match_the_dashboard_variables(uid):
    board = boards()[uid]
    text = json.dumps([each["targets"] for each in panels(board)])
    names = {each["name"] for each in board["templating"]["list"]} - {"datasource"}

    used = {
        name
        for name in ("cluster", "node", "gpu", "model", "run", "experiment", "price")
        if f"${name}" in text
    }
    assert used == names


@pytest.mark.parametrize("uid", UIDS)
def test_dashboard_fields_are_known_to_grafanas_sdk(uid):
    register_default_plugins()
    document = boards()[uid]

    again = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))

    document.pop("annotations", None)  # the SDK lacks the fields of Prometheus annotations
    assert list(dropped_values(document, again, uid)) == []


def dropped_values(before, after, where):
    """Yield values that the SDK's model drops; added defaults are ignored."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from dropped_values(value, after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from dropped_values(*pair, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


@pytest.mark.parametrize(
    ("board", "title", "metric"),
    [
        ("wattline-node", "Power of each GPU", "wattline_gpu_power_watts"),
        ("wattline-node", "Utilization", "wattline_gpu_utilization_ratio"),
        ("wattline-node", "Memory in use", "wattline_gpu_memory_used_bytes"),
        ("wattline-node", "Temperature", "wattline_gpu_temperature_celsius"),
        ("wattline-node", "SM clock", 'domain="sm"'),
        ("wattline-node", "Memory clock", 'domain="memory"'),
        ("wattline-runs", "Results", "wattline_run_result"),
        (
            "wattline-carbon",
            "Carbon intensity",
            "wattline_carbon_intensity_grams_per_kilowatt_hour",
        ),
    ],
)
def test_panel_exists_for_each_monitored_quantity(board, title, metric):
    assert metric in panel(board, title)["targets"][0]["expr"]


def test_numbers_and_gauges_have_no_default_threshold():
    orange = {
        "Held and idle GPUs",
        "Execution-idle GPUs",
        "Throttled GPUs",
        "GPUs below their default limit",
    }
    for uid in boards():
        for each in panels(boards()[uid]):
            if each["type"] in ("stat", "bargauge"):
                is_waste = uid == "wattline-waste" and each["title"] in orange
                steps = [
                    {"color": "green", "value": None},
                    *([{"color": "orange", "value": 1}] if is_waste else []),
                ]
                assert each["fieldConfig"]["defaults"]["thresholds"]["steps"] == steps


def test_panel_without_data_shows_a_remedy():
    assert (
        "wattline.rules.yml"
        in panel("wattline-fleet", "Energy")["fieldConfig"]["defaults"]["noValue"]
    )
    assert (
        "exporter check"
        in panel("wattline-node", "Power of CPUs")["fieldConfig"]["defaults"]["noValue"]
    )
