from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.wattline import Exporter, start_exporter
from tests.gpu import gpu_under_test
from tests.gpu.gpu_under_test import GpuUnderTest
from tests.gpu.results_page import render_page

RESULTS = Path(__file__).with_name("results")
SECONDS = float(os.environ.get("WATTLINE_GPU_SECONDS", "60"))
"""Length of each window in seconds; shorter windows only check the tests."""


@pytest.fixture(scope="session")
def gpu(request) -> GpuUnderTest:
    if "gpu" not in request.config.getoption("markexpr"):
        pytest.skip("needs an idle GPU for minutes; run make gpu")
    try:
        return gpu_under_test.find_gpu()
    except gpu_under_test.NoGpuError as error:
        pytest.skip(f"no NVIDIA driver on this machine: {error}")


@pytest.fixture(scope="session")
def record(request, gpu, tmp_path_factory) -> Iterator[dict[str, Any]]:
    """Record filled by the tests, printed and written at the end."""
    identity = gpu.probe("identity")
    results: dict[str, Any] = {
        "simulated": gpu.simulated,
        "gpu": {name: identity[name] for name in ("name", "driver", "gpus")},
        "python": platform.python_version(),
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    yield results
    folder = tmp_path_factory.mktemp("results") if gpu.simulated else RESULTS
    slug = re.sub(r"[^a-z0-9]+", "-", identity["name"].lower()).strip("-")
    text = render_page(results)
    (folder / f"{slug}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{slug}.md").write_text(text)
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{text}\nwritten to {folder / slug}.json and .md")


@pytest.fixture
def exporter(gpu, tmp_path) -> Iterator[Exporter]:
    """Daemon on the GPUs of this machine with default settings."""
    started = start_exporter(gpu.environment, tmp_path)
    with started.program:
        started.until_ready(gpu.probe("identity")["gpus"])
        yield started
