"""Events of a run's folder."""

import json

import pytest

from wattline.contract.run_files import (
    EndEvent,
    IterationEvent,
    PhaseEvent,
    StartEvent,
    parse_event,
)

START = {
    "event": "start",
    "t": 100,
    "run_id": "r",
    "workload": "w",
    "labels": {"model": "gpt2"},
    "gpus": ["GPU-a"],
    "command": ["true"],
    "config": {"steps": 3},
}
ITERATION = {"event": "iteration", "t": 1, "contributor": "", "index": 0, "latency_seconds": 0.5}
END = {"event": "end", "t": 2, "outcome": "ok", "exit_code": 0}


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            START,
            StartEvent(
                t=100.0,
                run_id="r",
                workload="w",
                labels={"model": "gpt2"},
                gpus=["GPU-a"],
                command=["true"],
                config={"steps": 3},
            ),
        ),
        ({"event": "phase", "t": 1.5, "name": "measure"}, PhaseEvent(t=1.5, name="measure")),
        (
            ITERATION | {"phase": None, "work": {"steps": 1}, "values": {"loss": 0.5}},
            IterationEvent(
                t=1.0,
                contributor="",
                index=0,
                latency_seconds=0.5,
                work={"steps": 1.0},
                values={"loss": 0.5},
            ),
        ),
        (
            END | {"duration_seconds": 3.5},
            EndEvent(t=2.0, outcome="ok", exit_code=0, duration_seconds=3.5),
        ),
    ],
)
def test_parse_event_returns_event_of_line(line, event):
    assert parse_event(json.dumps(line)) == event


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "the event: expected a JSON object"),
        ("[" * 100_000, "the event: too deeply nested"),
        ("{}", "event: expected start, phase, iteration, end"),
        ('{"event": ["start"]}', "event: expected start, phase, iteration, end"),
        ('{"event": "phase", "t": 1}', "name: field required"),
        ('{"event": "phase", "t": "1", "name": "a"}', "t: expected a number"),
        ('{"event": "phase", "t": true, "name": "a"}', "t: expected a number"),
        (f'{{"event": "phase", "t": 1{"0" * 400}, "name": "a"}}', "t: the number is too large"),
        ('{"event": "phase", "t": 1, "name": 2}', "name: expected text"),
        ('{"event": "phase", "t": 1, "name": "a", "b": 1}', "b: unknown field of the event phase"),
        (json.dumps(START | {"gpus": "0"}), "gpus: expected a list"),
        (json.dumps(START | {"gpus": [0]}), "gpus.0: expected text"),
        (json.dumps(START | {"labels": {"a": 1}}), "labels.a: expected text"),
        (json.dumps(START | {"config": []}), "config: expected an object"),
        (json.dumps(ITERATION | {"index": -1}), "index: expected a number of at least 0"),
        (json.dumps(ITERATION | {"index": 1.0}), "index: expected a whole number"),
        (json.dumps(ITERATION | {"latency_seconds": -1}), "latency_seconds: expected a number of"),
        (json.dumps(ITERATION | {"work": {"steps": "1"}}), "work.steps: expected a number"),
        (json.dumps(END | {"outcome": "good"}), "outcome: expected ok, failed, interrupted"),
    ],
)
def test_parse_event_invalid_line_names_the_field(line, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_event(line)


def test_parse_event_truncated_line_is_rejected():
    with pytest.raises(ValueError, match="Unterminated string"):
        parse_event('{"event": "pha')
