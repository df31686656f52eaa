"""The same run from four sources: memory, a history file, a server's query API and an imported
power log.
"""

from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest

from tests.analyzer.golden.documents import leaves, without_texts
from tests.analyzer.loopback import history_api, http_server
from tests.analyzer.metamorphic.world import EXAMPLES, SLOT_S, expected_document, world_of
from tests.analyzer.node import write_history
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_analyzer.core.run_report import UserInputs
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.document import report_document

SEEDS = range(EXAMPLES)


def document_from(source, world, run_id="train-1", inputs=None):
    with closing(source):
        frames = load_run(
            source,
            run_id,
            86_400,
            Clock(lambda: world.end_s + 7_200, lambda _: None),
            lambda _: None,
        )
    return report_document(assess(frames, *([inputs] if inputs else [])))


@pytest.mark.parametrize("seed", SEEDS)
def test_report_from_history_and_server_equals_memory(tmp_path, seed):
    world = world_of(seed)
    history = write_history(tmp_path, world.series())
    expected = leaves(without_texts(expected_document(world)))

    with http_server(history_api(history)) as (address, _):
        sources = HistorySource(history), PrometheusSource(f"http://{address}")
        results = [leaves(without_texts(document_from(source, world))) for source in sources]

    for result in results:
        assert result.keys() == expected.keys()
        for path, value in expected.items():
            near = isinstance(value, float)
            assert result[path] == (pytest.approx(value, rel=1e-9, abs=1e-9) if near else value), (
                path
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_report_of_imported_power_log_has_energy_of_run(call, tmp_path, seed):
    """Each step of power lies between two samples: an error of at most half their distance times
    the step.
    """
    world = world_of(seed)
    log = write_log(tmp_path / "power.csv", world, spacing_s=0.5)
    out = tmp_path / "imported.sqlite"
    edges = ("--start", world.start_s, "--end", world.end_s)
    code, _, stderr = call(
        "import", log, "--out", out, "--run-id", "train-1", "--timezone", "UTC", *edges
    )
    assert code == 0, stderr

    spans = ((world.border_s + SLOT_S * n, world.border_s + SLOT_S * (n + 1)) for n in (-1, 0))
    slots = tuple(
        PastSlot(*span, grams, "actual") for span, grams in zip(spans, (90.0, 450.0), strict=True)
    )
    past = PastIntensities("gb", "GB", "average", slots)
    document = document_from(HistorySource(out), world, inputs=UserInputs(past=(past,)))

    true_j = [
        world.energy_j(world.start_s, world.border_s),
        world.energy_j(world.border_s, world.end_s),
    ]
    most_j = (
        0.5 / 2 * sum(abs(b - a) for gpu in world.gpus for (_, a), (_, b) in pairwise(gpu.steps))
    )
    assert document["duration_seconds"] == pytest.approx(world.length_s, abs=0.001)
    assert document["energy"]["gpu"]["energy_joules"] == pytest.approx(sum(true_j), abs=most_j)
    restated = document["restated_emissions"][0]["slots"]
    assert [slot["energy_joules"]["gpu"] for slot in restated] == pytest.approx(
        true_j, abs=2 * most_j
    )


def write_log(path, world, spacing_s):
    """Write the power of all GPUs as nvidia-smi does, from 20 s before the run until 20 s after
    it.
    """
    lines = ["timestamp, index, uuid, power.draw [W]"]
    for t in np.arange(world.start_s - 20, world.end_s + 20, spacing_s).round(3).tolist():
        when = f"{datetime.fromtimestamp(t, UTC):%Y/%m/%d %H:%M:%S.%f}"[:-3]
        lines += [f"{when}, {gpu.index}, {gpu.uuid}, {gpu.power_w(t)!r} W" for gpu in world.gpus]
    path.write_text("\n".join([*lines, ""]))
    return path
