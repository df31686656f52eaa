"""What the command line asks for, checked."""

from __future__ import annotations

import enum
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ADDRESS = "127.0.0.1:9847"
DEFAULT_SOCKET_MODE = "0660"
DEFAULT_GROUP = "name"


class UsageError(Exception):
    """An option's value cannot be used; the text names it and says what can."""


class OperationError(Exception):
    """It cannot go on as things are on this machine; the text says why and what to do."""


class LogLevel(enum.StrEnum):
    debug = "debug"
    info = "info"
    warn = "warn"
    error = "error"


class LogFormat(enum.StrEnum):
    logfmt = "logfmt"
    json = "json"


@dataclass(frozen=True, slots=True)
class Settings:
    state_path: Path
    listen_address: str = DEFAULT_ADDRESS
    simulate: str | None = None
    sysfs: Path = Path("/sys")
    nvml: bool = True
    rapl: bool = True
    hwmon: bool = True
    host: bool = True
    processes: bool = False
    process_group: str | None = None
    """`name` where none is given."""
    process_pids: bool = False
    kubelet_socket: Path | None = None
    history: bool = True
    cpu_power_model: str | None = None
    carbon_provider: str | None = None
    carbon_region: str | None = None
    carbon_intensity: float | None = None
    carbon_url: str | None = None
    carbon_token_file: Path | None = None
    carbon_marginal_provider: str | None = None
    carbon_marginal_region: str | None = None
    carbon_marginal_url: str | None = None
    exit_when_idle: bool = False
    web_config: Path | None = None
    api_socket: Path | None = None
    api_socket_mode: str | None = None
    """0660 where none is given."""
    api_socket_group: str | None = None
    api_token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    push_url: str | None = None
    push_basic_auth: str | None = None
    push_token_file: Path | None = None
    push_ca_file: Path | None = None
    push_headers: tuple[str, ...] = ()
    push_labels: tuple[str, ...] = ()
    push_every: str | None = None
    """15s where none is given."""

    def address(self) -> tuple[str, int]:
        """Host and port. Raises UsageError."""
        host, colon, port = self.listen_address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise UsageError(
                f"--web.listen-address: expected HOST:PORT, such as {DEFAULT_ADDRESS}, not {self.listen_address!r}"
            )
        return host.strip("[]"), int(port)

    def refuse_what_does_nothing(self) -> None:
        """Raises UsageError for an option that has no effect beside the others, or can have none."""
        needs = (
            ("--web.api-socket-mode", self.api_socket_mode is not None, "--web.api-socket PATH", self.api_socket),
            ("--web.api-socket-group", self.api_socket_group is not None, "--web.api-socket PATH", self.api_socket),
            ("--collector.processes.group", self.process_group is not None, "--collector.processes", self.processes),
            ("--collector.processes.pid", self.process_pids, "--collector.processes", self.processes),
        )
        for option, given, needed, there in needs:
            if given and not there:
                raise UsageError(f"{option} does nothing without {needed}: add that, or leave it out")
        if self.simulate is not None and not self.nvml:
            raise UsageError("--simulate does nothing with --no-collector.nvml: leave out one of them")
        if not self.sysfs.is_dir():
            raise UsageError(f"--path.sysfs: there is no folder {self.sysfs}; it is where sysfs is mounted: /sys")
        for name in self.allowed_hosts:
            if not _is_host(name):
                raise UsageError(
                    f"--web.allowed-host: expected a name or an address such as gpu.example.org, without scheme, port "
                    f"or '*', not {name!r}"
                )


def _is_host(text: str) -> bool:
    """Whether a Host header can have it, less its port."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", text):
        return True
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def default_state_path() -> Path:
    """The state folder that systemd gives, else the XDG state folder."""
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "wattline"
