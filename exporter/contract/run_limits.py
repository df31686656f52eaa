"""Constants of runs, in a module without pydantic, which --help need not import."""

MAX_RUNNING = 64
"""Default limit of open runs."""
OWNER_LABELS = ("user", "account", "partition", "job_name", "array_id", "namespace", "pod", "container", "unit")
"""Labels that a discovered run can have, in addition to `discovered`."""
OUTCOMES = ("failed", "interrupted", "unknown", "ok")
"""Outcomes, the worst first: a run on several nodes has the worst of them."""
