"""Client library of the run API, for jobs written in Python."""

from workloads.client.runs import Run, run

__all__ = ["Run", "run"]
