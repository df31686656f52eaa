"""Defaults and checks of option values, and the errors of commands."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from exporter.contract.command_line import user_state_folder


class UsageError(Exception):
    """An invalid value of an option; the text names it and the valid values."""


class OperationError(Exception):
    """A condition of this host that ends the command; the text contains the cause and the remedy."""


def listed_names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Return the names in a list separated by commas. Raises UsageError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"{option}: unknown name {', '.join(unknown) or repr(text)}; use {','.join(known)}")
    return names


def is_host(text: str) -> bool:
    """Return whether a Host header can contain the text as name or address."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", text):
        return True
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def check_url(text: str | None, option: str) -> str | None:
    """Return the URL. Raises UsageError for an invalid one, and for one with a password, which logs would contain."""
    if text is None:
        return None
    if not re.fullmatch(r"https?://[^\s@?#]+", text):
        raise UsageError(f"{option}: expected http://HOST/PATH or https://HOST/PATH, without a user, a query or a '#'")
    return text


def default_state_path() -> Path:
    """Return the state folder of the systemd unit, else that of the user."""
    folders = os.environ.get("STATE_DIRECTORY")
    return Path(folders.split(":")[0]) if folders else user_state_folder(os.environ)
