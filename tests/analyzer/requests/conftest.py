"""History file of a simulated server whose true joules are known."""

import json

import numpy as np
import pytest

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.analyzer.requests.server import AFTER_S, BEFORE_S, records
from tests.exporter.requests.division.server import IDLE_W, serve
from wattline.contract import metrics as m


@pytest.fixture(scope="module")
def served():
    return serve(np.random.default_rng(4), "conversation", 0.6, 60.0)


@pytest.fixture(scope="module")
def end_s(served):
    return START_S + BEFORE_S + float(served.steps[-1, 0] + served.steps[-1, 1]) + AFTER_S


@pytest.fixture(scope="module")
def history(served, end_s, tmp_path_factory):
    """Two GPUs that share the server's power equally, with a sample each second."""
    steps = [(START_S - 100, IDLE_W / 2)]
    for begin, seconds, joules in served.steps:
        begin_s = START_S + BEFORE_S + begin
        steps = [one for one in steps if one[0] < begin_s]
        steps += [(begin_s, (IDLE_W + joules / seconds) / 2), (begin_s + seconds, IDLE_W / 2)]
    gpus = [NodeGpu(steps, index=index) for index in ("0", "1")]
    run = NodeRun("server-1", start_s=START_S, end_s=end_s, workload="serve")

    def values(t):
        yield from scrape(gpus, run, t)
        for gpu in gpus:
            yield m.IDLE_POWER, {"component": "gpu", "device": gpu.uuid}, IDLE_W / 2

    times = scrape_times(1.0, START_S - 30, end_s + 30)
    return write_history(
        tmp_path_factory.mktemp("requests"), series_of_scrapes((t, values(t)) for t in times)
    )


@pytest.fixture(scope="module")
def true_j(served, end_s):
    """Energy of both GPUs in the run."""
    return IDLE_W * (end_s - START_S) + float(served.steps[:, 2].sum())


@pytest.fixture
def requests_file(served, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, records(served))))
    return path


@pytest.fixture
def report(call, history):
    def of(path, *arguments):
        return call(
            "requests",
            "--source",
            history,
            "--since",
            "4000d",
            "--run-id",
            "server-1",
            "--requests",
            path,
            *arguments,
        )

    return of
