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
from tests.gpu import card as cards
from tests.gpu.card import GpuUnderTest
from tests.gpu.page import page

RESULTS = Path(__file__).with_name("results")
SECONDS = float(os.environ.get("WATTLINE_GPU_SECONDS", "60"))
"""Length of each window in seconds; shorter ones try the machinery."""


@pytest.fixture(scope="session")
def card(request) -> GpuUnderTest:
    if "gpu" not in request.config.getoption("markexpr"):
        pytest.skip("it needs an idle GPU for minutes: make gpu")
    try:
        return cards.find()
    except cards.NoGpuError as error:
        pytest.skip(f"no NVIDIA driver on this machine: {error}")


@pytest.fixture(scope="session")
def record(request, card, tmp_path_factory) -> Iterator[dict[str, Any]]:
    """Record filled by the tests, printed and written at the end."""
    gpu = card.ask("who")
    found: dict[str, Any] = {
        "simulated": card.simulated,
        "gpu": {name: gpu[name] for name in ("name", "driver", "gpus")},
        "python": platform.python_version(),
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    yield found
    folder = tmp_path_factory.mktemp("results") if card.simulated else RESULTS
    slug = re.sub(r"[^a-z0-9]+", "-", gpu["name"].lower()).strip("-")
    text = page(found)
    (folder / f"{slug}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{slug}.md").write_text(text)
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{text}\nwritten to {folder / slug}.json and .md")


@pytest.fixture
def exporter(card, tmp_path) -> Iterator[Exporter]:
    """Daemon on the GPUs of this machine with default settings."""
    started = start_exporter(card.environment, tmp_path)
    with started.program:
        started.until_ready(card.ask("who")["gpus"])
        yield started
