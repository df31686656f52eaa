"""A report's rates: of the phases of the work, of the whole run, and the job's own."""

import io
import re

from analyzer.output.terminal import console, terminal_report
from tests.analyzer.node import Run
from tests.analyzer.reported import report_of


def test_each_rate_says_what_time_it_is_of(tmp_path):
    """900 tokens: 60/s in the 15 s of measure, 45/s of all 20 s, and 61/s as the job counted."""
    run = Run(
        phases={"warmup": (5.0, 1_000.0), "measure": (15.0, 5_000.0)},
        phase_work={"measure": {"generated_tokens": 900.0}},
        work={"generated_tokens": 900.0, "steps": 100.0},
        results={"tokens_per_second": 61.0},
    )
    target = io.StringIO()
    console(target, plain_columns=140).print(terminal_report(report_of(tmp_path, run)))
    text = target.getvalue()

    assert "900 generated tokens, 60.00 generated tokens/s in phase measure" in text
    assert "5.556 J per generated token in phase measure" in text
    assert "100 steps, 5.000 steps/s over the whole run" in text
    assert "Units per second of the run" in text
    assert "45.00/s" in text
    assert re.search(r"tokens_per_second +61\.00", text)
