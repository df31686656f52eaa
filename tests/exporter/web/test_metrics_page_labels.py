"""Labels of any content survive a scrape unchanged."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as classic
from pydantic import ValidationError

from tests.servers import require
from wattline.contract.metrics import RUN_INFO
from wattline_exporter.sensors.readings import Reading, printable
from wattline_exporter.storage.history import History
from wattline_exporter.web.bodies import BeginRequest
from wattline_exporter.web.metrics_page import CollectedSeries, MetricsRenderer

NAMES = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,20}\Z")
BIDIRECTIONAL = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
TEXTS = st.text(
    st.characters(
        exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f", *BIDIRECTIONAL]
    )
)
VALUES = st.one_of(TEXTS, st.text('"\\\n\t{}=,#\u2028\x85 a')).map(lambda text: text[:128])
HOSTILE = [
    'a"} 1\nwattline_gpu_power_watts{gpu="0"} 9',
    "\\",
    '\\"',
    "\\n",
    "{}",
    "# HELP",
    "é世🔋",
    "",
    " ",
    "NaN",
]


def page(workload, labels, accept=""):
    extra = tuple((f"label_{name}", value) for name, value in labels.items())
    reading = Reading(RUN_INFO, ("r1", workload), 1.0, extra)
    return (
        MetricsRenderer(lambda: CollectedSeries([reading]), lambda: 0.0)
        .page(accept, compress=False)
        .body
    )


@given(VALUES.filter(bool), st.dictionaries(NAMES, VALUES, max_size=16))
@settings(max_examples=300, deadline=None)
def test_run_labels_survive_a_scrape(workload, labels):
    body = BeginRequest.model_validate({"workload": workload, "labels": labels})
    expected = {"run_id": "r1", "workload": workload} | {f"label_{k}": v for k, v in labels.items()}

    for parse, accept in (
        (classic, ""),
        (open_metrics, "application/openmetrics-text; version=1.0.0"),
    ):
        text = page(body.workload, body.labels, accept).decode()
        (sample,) = [sample for family in parse(text) for sample in family.samples]
        assert sample.labels == expected
        assert sample.value == 1


@pytest.mark.parametrize(
    "name", ["run_id", "workload", "label_a", "__name__", "job", "instance", "le"]
)
def test_run_label_cannot_replace_a_metrics_label(name):
    ((sample,),) = [
        family.samples for family in classic(page("x", {name: "forged", "a": "b"}).decode())
    ]

    assert sample.labels == {
        "run_id": "r1",
        "workload": "x",
        f"label_{name}": "forged",
        "label_a": "b",
    }
    assert sample.name == "wattline_run_info"


def test_page_with_hostile_labels_passes_promtool():
    text = page(HOSTILE[0], {f"l{i}": value for i, value in enumerate(HOSTILE)})
    done = subprocess.run(
        [require("promtool"), "check", "metrics"], input=text, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("character", ["\0", "\x1b", "\r", "\x7f", "\ud800", *BIDIRECTIONAL])
@pytest.mark.parametrize("field", ["workload", "labels"])
def test_run_label_with_control_character_is_rejected(character, field):
    text = f"a{character}b"
    given = {"workload": text} if field == "workload" else {"workload": "x", "labels": {"a": text}}

    with pytest.raises(ValidationError, match=field):
        BeginRequest.model_validate(given)


@pytest.mark.parametrize("name", ["a b", "a-b", "1a", "é", "a\n", "", "a=b", 'a"'])
def test_run_label_name_follows_prometheus(name):
    with pytest.raises(ValidationError, match="labels"):
        BeginRequest.model_validate({"workload": "x", "labels": {name: ""}})


def test_page_with_any_process_name_is_parsed(tmp_path):
    name = b"a\0b\x1b[2J\xff\xfe\r\n".decode("utf-8", "surrogateescape")
    text = page(name, {}).decode()
    ((sample,),) = [family.samples for family in classic(text)]

    assert sample.labels["workload"] == "a\ufffdb\ufffd[2J\ufffd\ufffd\r\n" == printable(name)
    assert not set(text) & {"\0", "\x1b"}


def test_history_keeps_hostile_labels_unchanged(tmp_path):
    history = History(tmp_path)
    readings = [Reading(RUN_INFO, ("r1", value or "x"), 1.0) for value in HOSTILE]
    history.add(1_000.0, readings, run_open=True)
    history.close()

    from wattline.contract.history import open_read_only, parse_query, select_series

    connection = open_read_only(tmp_path / "history.sqlite")
    series_list = select_series(connection, parse_query("wattline_run_info[10s]"), 1_001.0)
    connection.close()
    assert {series.labels["workload"] for series in series_list} == {
        value or "x" for value in HOSTILE
    }
