"""The dashboards as files: written by the generator, within the contract, and laid out so that nothing is hidden."""

import json
from itertools import combinations

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.board import as_json
from grafana.boards import BOARDS
from tests.grafana.ask import DASHBOARDS, boards, filled, panel, panels
from tests.grafana.promql import GRAFANA, PRICE, STEP_MS, meaning

UIDS = sorted(boards())
QUERIES = [
    pytest.param(each, target, id=f"{uid}-{each['title']}-{target['refId']}".replace(" ", "_"))
    for uid, board in boards().items()
    for each in panels(board)
    for target in each["targets"]
]


def read(target):
    return meaning(filled(target["expr"], run="a-run", price=PRICE, __interval_ms=STEP_MS))


def organized(found):
    return next(step["options"] for step in found["transformations"] if step["id"] == "organize")


def test_the_files_are_what_the_generator_writes():
    assert {board.uid for board in BOARDS} == set(UIDS)
    for board in BOARDS:
        assert (DASHBOARDS / f"{board.uid}.json").read_text() == as_json(board), "try: python -m grafana"


@pytest.mark.parametrize(("found", "target"), QUERIES)
def test_metrics_labels_and_sums_of_a_query_are_as_the_contract_has_them(found, target):
    assert read(target).dimension is not None


@pytest.mark.parametrize(("found", "target"), QUERIES)
def test_a_panels_unit_is_that_of_its_query(found, target):
    defaults, custom = found["fieldConfig"]["defaults"], found["fieldConfig"].get("overrides", [])
    unit = defaults["unit"]
    if "transformations" in found:
        names = organized(found)["renameByName"]
        column = names.get(f"Value #{target['refId']}", names.get("Value"))
        units = {each["matcher"]["options"]: each["properties"][0]["value"] for each in custom}
        unit = units.get(column, unit)
    dimension, scale = read(target).unit()
    if unit == "short" and "price" in target["expr"]:
        assert (dimension, scale) == ({"money": 1}, pytest.approx(1))
    else:
        assert (dimension, scale) == (GRAFANA[unit][0], pytest.approx(GRAFANA[unit][1]))


@pytest.mark.parametrize("uid", UIDS)
def test_panels_lie_side_by_side_and_within_the_width(uid):
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
def test_each_panel_has_an_id_a_description_and_the_chosen_source(uid):
    board = boards()[uid]

    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    assert board["description"].endswith((".", "`."))
    assert "datasource" in [each["name"] for each in board["templating"]["list"]]
    for each in panels(board):
        assert each["description"].endswith("."), each["title"]
        for asking in (each, *each["targets"]):
            assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("uid", UIDS)
def test_each_variable_of_a_query_is_one_of_the_board_and_the_other_way_round(uid):
    board = boards()[uid]
    text = json.dumps([each["targets"] for each in panels(board)])
    names = {each["name"] for each in board["templating"]["list"]} - {"datasource"}

    used = {name for name in ("cluster", "node", "gpu", "model", "run", "experiment", "price") if f"${name}" in text}
    assert used == names


@pytest.mark.parametrize("uid", UIDS)
def test_the_models_of_grafanas_sdk_know_every_field_of_a_board(uid):
    register_default_plugins()
    document = boards()[uid]

    again = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))

    document.pop("annotations", None)  # the SDK has no fields for what Prometheus adds to one
    assert list(lost(document, again, uid)) == []


def lost(before, after, where):
    """What a model has no field for; defaults that it adds are no loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{where}[{number}]")
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
        ("wattline-carbon", "Carbon intensity", "wattline_carbon_intensity_grams_per_kilowatt_hour"),
    ],
)
def test_what_a_benchmarks_monitor_shows_has_a_panel(board, title, metric):
    assert metric in panel(board, title)["targets"][0]["expr"]


def test_numbers_and_gauges_are_not_red_from_eighty_on():
    for uid in boards():
        for each in panels(boards()[uid]):
            if each["type"] in ("stat", "bargauge"):
                assert each["fieldConfig"]["defaults"]["thresholds"]["steps"] == [{"color": "green", "value": None}]


def test_a_panel_without_data_says_what_to_do():
    assert "wattline.rules.yml" in panel("wattline-fleet", "Energy")["fieldConfig"]["defaults"]["noValue"]
    assert "exporter check" in panel("wattline-node", "Power of CPUs")["fieldConfig"]["defaults"]["noValue"]
