"""Defaults and checks of option values, and the errors of commands."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from wattline.command_line import user_state_folder
from wattline.contract.api import MAX_POD_LABELS, OWNER_LABELS

_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3_600.0}


class UsageError(Exception):
    """An invalid value of an option; the text names it and the valid values."""


class OperationError(Exception):
    """A condition of this host that ends the command; the text contains the cause and the
    remedy.
    """

    exit_code = 1


def listed_names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Return the names in a list separated by commas. Raises UsageError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(
            f"{option}: unknown name {', '.join(unknown) or repr(text)}; use {','.join(known)}"
        )
    return names


def owner_labels(text: str) -> list[str]:
    """Return the names in --runs.labels, with chosen labels and annotations of pods. Raises
    UsageError.
    """
    names = [name.strip() for name in text.split(",")]
    of_pods = [name for name in names if re.fullmatch(r"pod_(label|annotation):[\w./-]+", name)]
    if len(of_pods) > MAX_POD_LABELS:
        raise UsageError(
            f"--runs.labels: more than {MAX_POD_LABELS} labels and annotations of pods; remove some"
        )
    others = ",".join(name for name in names if name not in of_pods)
    return [
        *(listed_names(others, "--runs.labels", OWNER_LABELS) if others or not of_pods else []),
        *of_pods,
    ]


def parse_seconds(text: str, option: str, shortest: str, longest: str) -> float:
    """Return the seconds of a time such as `15s` or `10m`. Raises UsageError beyond the shortest
    and longest.
    """
    seconds = _seconds(text)
    if not _seconds(shortest) <= seconds <= _seconds(longest):
        raise UsageError(
            f"{option}: expected a time from {shortest} to {longest}, such as 15s, not {text!r}"
        )
    return seconds


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else -1.0


def is_host(text: str) -> bool:
    """Return whether a Host header can contain the text as name or address."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", text):
        return True
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def check_url(text: str | None, option: str) -> str | None:
    """Return the URL. Raises UsageError for an invalid one, and for one with a password, which logs
    would contain.
    """
    if text is None:
        return None
    if not re.fullmatch(r"https?://[^\s@?#]+", text):
        raise UsageError(
            f"{option}: expected http://HOST/PATH or https://HOST/PATH, without a user, a query or "
            "a '#'"
        )
    return text


def default_state_path() -> Path:
    """Return the state folder of the systemd unit, else that of the user."""
    folders = os.environ.get("STATE_DIRECTORY")
    return Path(folders.split(":")[0]) if folders else user_state_folder(os.environ)
