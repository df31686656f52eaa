"""Settings of the exporter: one declarative list of options, defaults and help texts."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from wattline.contract.api import MAX_RUNNING, OWNER_LABELS, RUN_TAIL_S
from wattline.contract.identity import OWNER_KINDS, OwnerKind
from wattline_exporter.config.kubernetes_options import (
    ApiOption,
    CredentialsOption,
    KubeletSocketOption,
    PodsOption,
)
from wattline_exporter.config.request_options import (
    LatenessOption,
    MetricsUrlOption,
    RateOption,
    RequestLabelsOption,
    RequestSettings,
    TracesOption,
    WindowOption,
)
from wattline_exporter.config.run_options import (
    DiscoverOption,
    JobMappingOption,
    MaxRunsOption,
    MinJoulesOption,
    MinSecondsOption,
    RunLabelsOption,
    RunSeries,
    RunSeriesOption,
    RunTailOption,
)
from wattline_exporter.config.values import (
    UsageError,
    default_state_path,
    is_host,
    listed_names,
    owner_labels,
    parse_seconds,
)

DEFAULT_ADDRESS = "127.0.0.1:9847"
_HIGHEST_PORT = 65_535
DEFAULT_SOCKET_MODE = "0660"
DEFAULT_GROUP = "name"


class LogLevel(enum.StrEnum):
    debug = "debug"
    info = "info"
    warn = "warn"
    error = "error"


class LogFormat(enum.StrEnum):
    logfmt = "logfmt"
    json = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values of the options, in the order of --help, except those of carbon intensities and of
    sensors in the registry.
    """

    listen_address: Annotated[
        str,
        typer.Option(
            "--web.listen-address", help="Address of /metrics and the run API.", metavar="HOST:PORT"
        ),
    ] = DEFAULT_ADDRESS
    web_config: Annotated[
        Path | None,
        typer.Option(
            "--web.config.file",
            help="TLS and basic auth, in Prometheus's web-config format.",
            metavar="FILE",
        ),
    ] = None
    api_socket: Annotated[
        Path | None,
        typer.Option(
            "--web.api-socket",
            help="Unix socket of the run API; changes over TCP then need a token.",
            metavar="PATH",
        ),
    ] = None
    api_socket_mode: Annotated[
        str | None,
        typer.Option(
            "--web.api-socket-mode",
            help="File mode of the API socket.",
            metavar="MODE",
            show_default=DEFAULT_SOCKET_MODE,
        ),
    ] = None
    api_socket_group: Annotated[
        str | None,
        typer.Option(
            "--web.api-socket-group", help="Group owner of the API socket.", metavar="NAME"
        ),
    ] = None
    api_token_file: Annotated[
        Path | None,
        typer.Option(
            "--web.api-token-file",
            help="File with the bearer token for changes of runs over TCP.",
            metavar="FILE",
        ),
    ] = None
    allowed_hosts: Annotated[
        list[str],
        typer.Option(
            "--web.allowed-host",
            help="Additional host name of this exporter; repeatable.",
            metavar="NAME",
        ),
    ] = field(default_factory=list)
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate", help="Simulate GPUs instead of reading the node's.", metavar="8xH200"
        ),
    ] = None
    state_path: Annotated[
        Path,
        typer.Option(
            "--state.path",
            help="Folder of state.sqlite and history.sqlite.",
            metavar="FOLDER",
            default_factory=default_state_path,
            show_default=False,
        ),
    ]
    sysfs: Annotated[
        Path, typer.Option("--path.sysfs", help="Mount point of sysfs.", metavar="FOLDER")
    ] = Path("/sys")
    nvml: Annotated[
        bool, typer.Option("--collector.nvml/--no-collector.nvml", help="Read GPUs through NVML.")
    ] = True
    processes: Annotated[
        bool,
        typer.Option(
            "--collector.processes/--no-collector.processes",
            help="Read CPU time and memory of processes.",
        ),
    ] = False
    process_group: Annotated[
        str | None,
        typer.Option(
            "--collector.processes.group",
            help="Key by which processes are grouped.",
            metavar="name|cgroup",
            show_default=DEFAULT_GROUP,
        ),
    ] = None
    process_pids: Annotated[
        bool, typer.Option("--collector.processes.pid", help="Export one series per PID.")
    ] = False
    kubelet_socket: KubeletSocketOption = None
    kubernetes_pods: PodsOption = None
    kubernetes_api: ApiOption = None
    kubernetes_credentials: CredentialsOption = None
    discover: DiscoverOption = None
    job_mapping_folder: JobMappingOption = None
    run_labels: RunLabelsOption = None
    max_runs: MaxRunsOption = MAX_RUNNING
    min_run_seconds: MinSecondsOption = 0.0
    min_run_joules: MinJoulesOption = 0.0
    run_tail: RunTailOption = None
    run_series: RunSeriesOption = RunSeries.all
    max_request_rate: RateOption = RequestSettings.per_second
    request_window: WindowOption = None
    request_lateness: LatenessOption = None
    request_labels: RequestLabelsOption = None
    otlp_traces: TracesOption = False
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep a local history.")
    ] = True
    otlp_metrics_url: MetricsUrlOption = None
    exit_when_idle: Annotated[
        bool, typer.Option("--exit-when-idle", help="Exit after the last run has ended.")
    ] = False

    def address(self) -> tuple[str, int]:
        """Return host and port. Raises UsageError."""
        host, colon, port = self.listen_address.rpartition(":")
        if colon and port.isdecimal() and int(port) > _HIGHEST_PORT:
            raise UsageError(
                f"--web.listen-address: expected a port up to {_HIGHEST_PORT}, not {port}"
            )
        if not colon or not port.isdecimal():
            raise UsageError(
                f"--web.listen-address: expected HOST:PORT, such as {DEFAULT_ADDRESS}, not "
                f"{self.listen_address!r}"
            )
        return host.strip("[]"), int(port)

    def run_tail_s(self) -> float:
        """Return the time in seconds for which /metrics has the series of an ended run. Raises
        UsageError.
        """
        return (
            RUN_TAIL_S
            if self.run_tail is None
            else parse_seconds(self.run_tail, "--runs.tail", "1s", "24h")
        )

    def discovered_kinds(self) -> list[OwnerKind]:
        """Return the kinds of owners for which runs are discovered. Raises UsageError."""
        if self.discover is None:
            return []
        if self.discover == "auto":
            return list(OWNER_KINDS)
        return [
            kind
            for kind in OWNER_KINDS
            if kind in listed_names(self.discover, "--runs.discover", OWNER_KINDS)
        ]

    def discovered_labels(self) -> list[str]:
        """Return the labels of discovered runs. Raises UsageError."""
        if self.run_labels is None:
            return list(OWNER_LABELS)
        return owner_labels(self.run_labels)

    def check_combinations(self) -> None:
        """Raise UsageError for an option that has no effect with the others, and for an invalid
        value.
        """
        sources = self.kubelet_socket or self.kubernetes_pods
        requirements = (
            (
                "--web.api-socket-mode",
                self.api_socket_mode is not None,
                "--web.api-socket PATH",
                self.api_socket,
            ),
            (
                "--web.api-socket-group",
                self.api_socket_group is not None,
                "--web.api-socket PATH",
                self.api_socket,
            ),
            (
                "--collector.processes.group",
                self.process_group is not None,
                "--collector.processes",
                self.processes,
            ),
            (
                "--collector.processes.pid",
                self.process_pids,
                "--collector.processes",
                self.processes,
            ),
            (
                "--hpc-job-mapping-dir",
                self.job_mapping_folder is not None,
                "--runs.discover slurm",
                self.discover,
            ),
            (
                "--kubernetes.pods",
                self.kubernetes_pods is not None,
                "--runs.discover kubernetes",
                self.discover,
            ),
            (
                "--kubernetes.api",
                self.kubernetes_api is not None,
                "--kubelet.pod-resources",
                sources,
            ),
            ("--runs.labels", self.run_labels is not None, "--runs.discover KIND", self.discover),
            ("--runs.min-seconds", self.min_run_seconds > 0, "--runs.discover KIND", self.discover),
            ("--runs.min-joules", self.min_run_joules > 0, "--runs.discover KIND", self.discover),
            ("--runs.discover", self.discover is not None, "--collector.nvml", self.nvml),
        )
        for option, is_set, required, is_present in requirements:
            if is_set and not is_present:
                raise UsageError(f"{option} needs {required}; add it, or remove this option")
        self.run_tail_s()
        RequestSettings.of(
            self.max_request_rate,
            self.request_window,
            self.request_lateness,
            self.request_labels,
        )
        if self.simulate is not None and not self.nvml:
            raise UsageError("--simulate and --no-collector.nvml exclude each other; remove one")
        if not self.sysfs.is_dir():
            raise UsageError(
                f"--path.sysfs: no folder {self.sysfs}; use the mount point of sysfs, /sys"
            )
        for name in self.allowed_hosts:
            if not is_host(name):
                raise UsageError(
                    "--web.allowed-host: expected a name or an address such as gpu.example.org, "
                    "without scheme, port "
                    f"or '*', not {name!r}"
                )
