"""The options of the command line, by what they set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.settings import DEFAULT_GROUP, DEFAULT_SOCKET_MODE, PROVIDERS

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
