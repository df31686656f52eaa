"""Run ids, chosen by the one who begins the run so that a repeated request begins no second one."""

from __future__ import annotations

import re
import secrets

_LONGEST_NAME = 40  # of 64 characters, the rest is for what makes the id unique


def named(workload: str, unique: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", workload).strip("._-")[:_LONGEST_NAME]
    return f"{name or 'run'}-{unique}"


def fresh(workload: str) -> str:
    return named(workload, secrets.token_hex(5))
