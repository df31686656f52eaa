"""Limits and ids of runs.

The module does not import pydantic, so that `--help` is fast.
"""

MAX_ID_LENGTH = 64
MAX_PHASES = 16
"""Limit of the phases of a run."""
MAX_RUNNING = 64
"""Default limit of open runs."""
RUN_TAIL_S = 600.0
"""Default time for which the metrics have the series of an ended run."""
OWNER_LABELS = (
    *("user", "account", "partition", "job_name", "array_id"),
    *("namespace", "pod", "container", "owner_kind", "owner_name", "unit"),
)
"""Labels that a discovered run can have, in addition to `discovered`."""
MAX_POD_LABELS = 8
"""Limit of the labels and annotations of a pod that its run has."""
OUTCOMES = ("failed", "interrupted", "unknown", "ok")
"""Outcomes, the worst first: a run on several nodes has the worst of them."""
MAX_OWNERS = 256
"""Limit of the owners with separate counters, per node; more are counted together as OTHER_OWNERS,
by kind.
"""
OTHER_OWNERS = "(other)"
OTHER_RUNS = "(other)"
"""Run id of the attributed energy of all owners whose runs did not begin, since too many were open.
"""
