"""Energy per unit of work in PromQL, evaluated by promtool."""

import json
import subprocess

import pytest

from tests import servers
from wattline.contract import metrics as m
from wattline.contract.work import WorkQueries

QUERIES = WorkQueries(
    "run_id",
    "instance, run_id",
    lambda metric, labels, matchers: (
        f"max by ({', '.join(('instance', 'run_id', *labels))}) ({metric.name}{{{matchers}}})"
    ),
)


def node(instance, *, phase_j):
    """Return the series of a run of 100 s with 6,000 J of one GPU on a node; with `phase_j` also
    those of its phase of 90 s.
    """
    own = {"instance": instance, "run_id": "r"}
    gpu = own | {"component": "gpu"}
    yield m.RUN_DURATION, own, 100.0
    yield m.RUN_END, own, 100.0
    yield m.RUN_ENERGY, gpu | {"device": f"GPU-{instance}"}, 6_000.0
    if phase_j is not None:
        phase = {"phase": "measure"}
        yield m.RUN_PHASE_SECONDS, own | phase, 90.0
        yield m.RUN_PHASE_ENERGY, gpu | phase, phase_j


def work(instance):
    """Return 20,000 tokens of the run, all in its phase."""
    own = {"instance": instance, "run_id": "r", "unit": "generated_tokens"}
    yield m.RUN_WORK, own, 20_000.0
    yield m.RUN_PHASE_WORK, own | {"phase": "measure"}, 20_000.0


def series_text(metric, labels, value):
    inner = ", ".join(f'{name}="{text}"' for name, text in labels.items())
    return {"series": f"{metric.name}{{{inner}}}", "values": f"{value:g}"}


@pytest.mark.parametrize(
    ("phase_of_b_j", "expected_j"),
    [
        # 2 × 6,000 J of the whole run, since b may have worked for the phase: 12,000 J / 20,000
        pytest.param(None, 0.6, id="a node lacks the phase"),
        # 5,000 + 3,000 J in the phase: 8,000 J / 20,000
        pytest.param(3_000.0, 0.4, id="both nodes have the phase"),
    ],
)
def test_energy_per_unit_in_phases_needs_them_on_all_nodes(tmp_path, phase_of_b_j, expected_j):
    series = [*node("a", phase_j=5_000.0), *work("a"), *node("b", phase_j=phase_of_b_j)]
    sample = {"labels": '{run_id="r", unit="generated_tokens"}', "value": expected_j}
    query = {"expr": QUERIES.energy_per_unit(), "eval_time": "0s", "exp_samples": [sample]}
    test = {
        "interval": "1m",
        "input_series": [series_text(*one) for one in series],
        "promql_expr_test": [query],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [test]}))

    completed = subprocess.run(
        [servers.require("promtool"), "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr
