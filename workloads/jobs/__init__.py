"""Registry of the built-in jobs: one module each, which also runs as `python -m workloads.jobs.NAME`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import cast

from workloads.jobs.base import Job

MODULES: Mapping[str, str] = {
    "container": "workloads.jobs.container",
    "dgemm": "workloads.jobs.dgemm",
    "llm-forward": "workloads.jobs.llm_forward",
    "llm-generate": "workloads.jobs.llm_generate",
    "llm-server": "workloads.jobs.llm_server",
    "llm-train": "workloads.jobs.llm_train",
    "memcpy": "workloads.jobs.memcpy",
    "resnet": "workloads.jobs.resnet",
    "sgemm": "workloads.jobs.sgemm",
    "simulated-load": "workloads.jobs.simulated_load",
    "sleep": "workloads.jobs.sleep",
}
"""Module of each job, imported when the job is used."""


def job_names() -> list[str]:
    return sorted(MODULES)


def load_job(name: str) -> Job:
    """Import a job's module. Raises KeyError."""
    return cast("Job", importlib.import_module(MODULES[name]))


def job_command(name: str, arguments: list[str]) -> list[str]:
    """Return the command of a job's process.

    `-P` keeps a user's file of the same name in the working directory from shadowing the module.
    """
    return [sys.executable, "-P", "-m", MODULES[name], *arguments]
