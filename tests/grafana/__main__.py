"""Generator of grafana/pictures from the synthetic hour: `python -m tests.grafana`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grafana import pictures
from tests.grafana import stores
from tests.grafana.cluster import END_S, SERVE

with tempfile.TemporaryDirectory() as folder, stores.prometheus(Path(folder)) as address:
    pictures.main([address, "--end", str(END_S + 30), "--run", SERVE.run_id])
