"""The options of the command line, by what they set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from exporter.contract.carbon.credentials import PROVIDERS
from exporter.settings import (
    DEFAULT_ADDRESS,
    DEFAULT_GROUP,
    DEFAULT_SOCKET_MODE,
    Settings,
    default_state_path,
)

P = ParamSpec("P")

Simulate = Annotated[
    str | None, typer.Option("--simulate", metavar="8xH200", help="Simulated GPUs in place of the node's own.")
]
StatePath = Annotated[
    Path | None, typer.Option("--state.path", metavar="FOLDER", help="Folder of state.sqlite and history.sqlite.")
]
Sysfs = Annotated[Path, typer.Option("--path.sysfs", metavar="FOLDER", help="Where sysfs is mounted.")]
Nvml = Annotated[bool, typer.Option("--collector.nvml/--no-collector.nvml", help="GPUs through NVML.")]
Rapl = Annotated[bool, typer.Option("--collector.rapl/--no-collector.rapl", help="CPU and DRAM energy through RAPL.")]
Hwmon = Annotated[bool, typer.Option("--collector.hwmon/--no-collector.hwmon", help="The board's power sensors.")]
Host = Annotated[bool, typer.Option("--collector.host/--no-collector.host", help="CPU and memory use of the node.")]
Processes = Annotated[
    bool, typer.Option("--collector.processes/--no-collector.processes", help="CPU time and memory of processes.")
]
ProcessGroup = Annotated[
    str | None,
    typer.Option(
        "--collector.processes.group",
        metavar="name|cgroup",
        help="What processes are added up by.",
        show_default=DEFAULT_GROUP,
    ),
]
ProcessPids = Annotated[bool, typer.Option("--collector.processes.pid", help="Each process for itself, under its pid.")]
KubeletSocket = Annotated[
    Path | None,
    typer.Option(
        "--kubelet.pod-resources",
        metavar="SOCKET",
        help="Pods of GPUs, from the kubelet: /var/lib/kubelet/pod-resources/kubelet.sock.",
    ),
]
CpuPowerModel = Annotated[
    str | None,
    typer.Option(
        "--cpu.power-model",
        metavar="idle=W,max=W",
        help="An estimate of CPU energy from utilization, where there is no RAPL.",
    ),
]
CarbonProvider = Annotated[
    str | None,
    typer.Option(
        "--carbon.provider",
        metavar="|".join(PROVIDERS),
        help="Where carbon intensities come from; watttime's are marginal, the others' average.",
    ),
]
CarbonRegion = Annotated[
    str | None,
    typer.Option("--carbon.region", help="gb: GB, a region or a postcode; static: a country; see `exporter regions`."),
]
CarbonUrl = Annotated[
    str | None,
    typer.Option("--carbon.url", metavar="URL", help="Another address of the provider's API, such as a proxy's."),
]
CarbonTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--carbon.token-file",
        metavar="FILE",
        help="electricitymaps' token, watttime's USER:PASSWORD, or a line PROVIDER=SECRET of each; "
        "else WATTLINE_CARBON_TOKEN.",
    ),
]
MarginalProvider = Annotated[
    str | None,
    typer.Option("--carbon.marginal-provider", metavar="watttime", help="Marginal intensities beside the average."),
]
MarginalRegion = Annotated[
    str | None,
    typer.Option("--carbon.marginal-region", help="Its region, such as CAISO_NORTH, or LATITUDE,LONGITUDE."),
]
MarginalUrl = Annotated[
    str | None, typer.Option("--carbon.marginal-url", metavar="URL", help="Another address of its API.")
]
CarbonIntensity = Annotated[
    float | None, typer.Option("--carbon.intensity", metavar="G_PER_KWH", help="A constant in gCO2eq/kWh.")
]

ListenAddress = Annotated[str, typer.Option("--web.listen-address", metavar="HOST:PORT", help="Where to serve.")]
WebConfig = Annotated[
    Path | None,
    typer.Option("--web.config.file", metavar="FILE", help="TLS and basic auth, in Prometheus's web-config format."),
]
ApiSocket = Annotated[
    Path | None,
    typer.Option("--web.api-socket", metavar="PATH", help="A Unix socket for the run API; TCP then needs a token."),
]
ApiSocketMode = Annotated[
    str | None,
    typer.Option("--web.api-socket-mode", metavar="MODE", help="Its file mode.", show_default=DEFAULT_SOCKET_MODE),
]
ApiSocketGroup = Annotated[str | None, typer.Option("--web.api-socket-group", metavar="NAME", help="Its group.")]
ApiTokenFile = Annotated[
    Path | None,
    typer.Option("--web.api-token-file", metavar="FILE", help="The bearer token that changes to runs need over TCP."),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--web.allowed-host", metavar="NAME", help="Another name of this exporter; may be given again."),
]
IdleSeconds = Annotated[
    float,
    typer.Option(
        "--idle-seconds",
        min=0.0,
        max=60.0,
        help="For how long to measure each GPU's idle power unwatched, and as long again polled; 0 leaves it out.",
    ),
]
History = Annotated[bool, typer.Option("--history/--no-history", help="Keep the local history.")]
PushUrl = Annotated[
    str | None,
    typer.Option(
        "--push.url",
        metavar="URL",
        help="Where to send what the history keeps, if nothing can scrape: VictoriaMetrics' "
        "http://HOST:8428/api/v1/import/prometheus, or remote write, http://HOST:9090/api/v1/write.",
    ),
]
PushBasicAuth = Annotated[str | None, typer.Option("--push.basic-auth", metavar="USER:PASSWORD-FILE")]
PushTokenFile = Annotated[
    Path | None, typer.Option("--push.token-file", metavar="FILE", help="The bearer token to push with.")
]
PushCaFile = Annotated[
    Path | None,
    typer.Option("--push.ca-file", metavar="FILE", help="Who has signed its certificate, if none that is known here."),
]
PushHeaders = Annotated[
    list[str] | None,
    typer.Option(
        "--push.header",
        metavar="NAME=VALUE|NAME=@FILE",
        help="A header for each request, such as X-Scope-OrgID=team, or from a file, which suits a secret; may be "
        "given again.",
    ),
]
PushLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--push.label",
        metavar="NAME=VALUE",
        help="A label for all that is pushed; may be given again. Unless given, instance is the name of this host.",
    ),
]
PushEvery = Annotated[
    str | None, typer.Option("--push.every", metavar="TIME", help="How often to push.", show_default="15s")
]
ExitWhenIdle = Annotated[bool, typer.Option("--exit-when-idle", help="End with the last run.")]

_SETTINGS: dict[str, tuple[Any, Any]] = {
    "listen_address": (ListenAddress, DEFAULT_ADDRESS),
    "web_config": (WebConfig, None),
    "api_socket": (ApiSocket, None),
    "api_socket_mode": (ApiSocketMode, None),
    "api_socket_group": (ApiSocketGroup, None),
    "api_token_file": (ApiTokenFile, None),
    "allowed_hosts": (AllowedHosts, None),
    "simulate": (Simulate, None),
    "state_path": (StatePath, None),
    "sysfs": (Sysfs, Path("/sys")),
    "nvml": (Nvml, True),
    "rapl": (Rapl, True),
    "hwmon": (Hwmon, True),
    "host": (Host, True),
    "processes": (Processes, False),
    "process_group": (ProcessGroup, None),
    "process_pids": (ProcessPids, False),
    "kubelet_socket": (KubeletSocket, None),
    "history": (History, True),
    "cpu_power_model": (CpuPowerModel, None),
    "carbon_provider": (CarbonProvider, None),
    "carbon_region": (CarbonRegion, None),
    "carbon_intensity": (CarbonIntensity, None),
    "carbon_url": (CarbonUrl, None),
    "carbon_token_file": (CarbonTokenFile, None),
    "carbon_marginal_provider": (MarginalProvider, None),
    "carbon_marginal_region": (MarginalRegion, None),
    "carbon_marginal_url": (MarginalUrl, None),
    "push_url": (PushUrl, None),
    "push_basic_auth": (PushBasicAuth, None),
    "push_token_file": (PushTokenFile, None),
    "push_ca_file": (PushCaFile, None),
    "push_headers": (PushHeaders, None),
    "push_labels": (PushLabels, None),
    "push_every": (PushEvery, None),
    "exit_when_idle": (ExitWhenIdle, False),
}
"""The fields of Settings, each with its option and its default, in the order of --help."""


def takes_settings(command: Callable[Concatenate[Settings, P], None]) -> Callable[..., None]:
    """A command with the options of Settings in place of its first parameter, which they make."""
    theirs = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=option)
        for name, (option, default) in _SETTINGS.items()
    ]
    every = [*theirs, *list(inspect.signature(command, eval_str=True).parameters.values())[1:]]

    @wraps(command)
    def with_options(**given: Any) -> None:
        settings = _settings({parameter.name: given.pop(parameter.name) for parameter in theirs})
        command(settings, **given)  # type: ignore[call-arg]  # typer gives names

    with_options.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # any attribute may be set
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return with_options


def _settings(given: dict[str, Any]) -> Settings:
    """Raises UsageError for options that do not go together."""
    given["state_path"] = given["state_path"] or default_state_path()
    for several in ("allowed_hosts", "push_headers", "push_labels"):
        given[several] = tuple(given[several] or ())
    settings = Settings(**given)
    settings.refuse_what_does_nothing()
    return settings
