"""A node with all collectors, whose clock and sensors are fixed."""

from wattline.contract import metrics as m
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.admission import DiscoveredRun, RunEnd, RunStart
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.readings import (
    Batch,
    ClockReading,
    Device,
    GpuCount,
    GpuFailure,
    GpuInfo,
    Poll,
    Reading,
    ReadingChanges,
    Slot,
    SourceError,
    XidError,
    XidReporting,
)
from wattline_exporter.web.series import SeriesCollector

START_S, START_AT = 1_000.0, 1_790_000_000.0
PERIOD_S = 0.125
IDLE_W, BUSY_W = 75.0, 300.0
BEGIN_S, PHASE_S, END_S, NEXT_BEGIN_S, NOW_S = 1_015.0, 1_020.0, 1_035.0, 1_036.0, 1_050.0
UUID, LOST_UUID, MIG_UUID = "GPU-11111111", "GPU-22222222", "MIG-33333333"
GPU, PACKAGE, CORE = Device("gpu", UUID), Device("package", "0"), Device("core", "0")
BOARD = Device("hwmon", "power_meter-ACPI000D:00/Module Power Socket 0")
SLOT = Slot(START_AT, START_AT + 3_600, 230.0, "GB", "gb", "average", "actual")
LABELS = ("0", UUID)
LIMITS_W = {"enforced": 700.0, "requested": 700.0, "default": 700.0, "min": 200.0, "max": 700.0}
GPU_READINGS = (
    *(
        Reading(m.GPU_POWER_LIMIT, (*LABELS, kind), watts)
        for kind, watts in (
            ("enforced", 700.0),
            ("requested", 700.0),
            ("default", 700.0),
            ("min", 200.0),
            ("max", 700.0),
        )
    ),
    *(
        Reading(m.GPU_UTILIZATION, (*LABELS, engine), ratio)
        for engine, ratio in (("gpu", 0.0), ("memory", 0.25), ("encoder", 0.0), ("decoder", 0.0))
    ),
    Reading(m.GPU_MEMORY_USED, LABELS, 2.0**30),
    Reading(m.GPU_MEMORY_TOTAL, LABELS, 141.0 * 2**30),
    Reading(m.GPU_TEMPERATURE, (*LABELS, "gpu"), 45.0),
    Reading(m.GPU_TEMPERATURE, (*LABELS, "memory"), 50.0),
    Reading(m.GPU_TEMPERATURE_LIMIT, (*LABELS, "gpu", "slowdown"), 89.0),
    Reading(m.GPU_TEMPERATURE_LIMIT, (*LABELS, "gpu", "shutdown"), 92.0),
    *(
        Reading(m.GPU_CLOCK, (*LABELS, domain), 1.98e9)
        for domain in ("sm", "memory", "graphics", "video")
    ),
    *(
        Reading(m.GPU_CLOCK_MAX, (*LABELS, domain), 1.98e9)
        for domain in ("sm", "memory", "graphics", "video")
    ),
    Reading(m.GPU_CLOCK_EVENT_SECONDS, (*LABELS, "sw_power_cap"), 5.0),
    Reading(m.GPU_PERFORMANCE_STATE, LABELS, 0.0),
    Reading(m.GPU_FAN, LABELS, 0.3),
    Reading(m.GPU_PCIE_BYTES, (*LABELS, "transmit"), 1e9),
    Reading(m.GPU_ECC_ERRORS, (*LABELS, "corrected"), 0.0),
    Reading(m.GPU_MIG_INFO, ("0", MIG_UUID, UUID, "1g.18gb", "7", "0"), 1.0),
)
LATER_READINGS = (
    Reading(m.GPU_UTILIZATION, (*LABELS, "gpu"), 1.0),
    Reading(m.GPU_CLOCK_EVENT_SECONDS, (*LABELS, "sw_power_cap"), 7.5),
    Reading(m.GPU_PCIE_BYTES, (*LABELS, "transmit"), 3e9),
    Reading(m.GPU_ECC_ERRORS, (*LABELS, "corrected"), 1.0),
)
HOST = (
    Reading(m.HOST_CPU_UTILIZATION, (), 0.01),
    Reading(m.HOST_MEMORY_USED, (), 2.0**34),
    Reading(m.HOST_MEMORY_TOTAL, (), 2.0**37),
    Reading(m.PROCESS_CPU, ("exporter",), 1.5),
    Reading(m.PROCESS_MEMORY, ("exporter",), 5e7),
    Reading(m.PROCESS_CPU, ("nvml_worker",), 0.5),
    Reading(m.PROCESS_MEMORY, ("nvml_worker",), 1e7),
)
PROCESSES = (
    Reading(m.HOST_PROCESS_CPU, ("python",), 12.0),
    Reading(m.HOST_PROCESS_PSS, ("python",), 3e8),
    Reading(m.HOST_PROCESS_USS, ("python",), 2e8),
    Reading(m.GPU_PROCESS_MEMORY, (*LABELS, "python"), 2.0**30),
    Reading(m.GPU_PROCESS_UTILIZATION, (*LABELS, "python"), 0.75),
)
SERVICES = (
    Reading(m.NODE_INFO, ("gpu-7", "0123456789abcdef0123456789abcdef", "false"), 1.0),
    Reading(m.STATE_UP, (), 1.0),
    Reading(m.STATE_FREE, (), 5e9),
    Reading(m.STATE_USED, (), 7e6),
    Reading(m.DISCOVERY_UNRESOLVED, ("not_visible",), 0.0),
    Reading(m.DISCOVERY_UNRESOLVED, ("no_owner",), 2.0),
    Reading(m.DISCOVERY_SOURCE_UP, ("pods",), 1.0),
    Reading(m.RUNS_FOLDED, (), 3.0),
    *(
        Reading(m.REQUEST_ENERGY_BUCKET, ("llama", "", edge), n, (("user", "ann"),))
        for edge, n in (("10.0", 1.0), ("+Inf", 2.0))
    ),
    Reading(m.REQUEST_ENERGY_COUNT, ("llama", ""), 2.0, (("user", "ann"),)),
    Reading(m.REQUEST_ENERGY_SUM, ("llama", ""), 60.0, (("user", "ann"),)),
    Reading(m.REQUEST_ENERGY_TOTAL, ("llama", ""), 60.0, (("user", "ann"),)),
    Reading(m.REQUESTS, ("llama", ""), 2.0, (("user", "ann"),)),
    Reading(m.REQUESTS_REJECTED, ("late",), 1.0),
    Reading(m.RUN_REQUESTS_START, ("running", "gpu", UUID), START_AT + 40.0),
    Reading(m.RUN_EMISSIONS_COVERED_RATIO, ("running", "gpu", "average"), 0.75),
    Reading(m.OTLP_SPANS, ("accepted",), 40.0),
    Reading(m.OTLP_SPANS, ("no_run",), 2.0),
    Reading(m.CARBON_INTENSITY, ("GB", "gb", "average", "actual"), 230.0),
    Reading(m.CARBON_INTENSITY_TIMESTAMP, ("GB", "gb", "average", "actual"), START_AT),
    Reading(m.CARBON_FETCHED_TIMESTAMP, ("gb", "average"), START_AT),
    Reading(m.CARBON_SLOTS_DROPPED, ("gb", "average"), 2.0),
    Reading(m.CARBON_FORECAST, ("GB", "gb", "average", "1"), 210.0),
)


class FixedServices:
    def readings(self):
        return SERVICES


class EmptyArchive:
    def run(self, _):
        return None

    def runs(self, _):
        return []


class GoldenNode:
    """GPU 0 and the package have 75 W, and 300 W from BEGIN_S to END_S; GPU 1 does not answer."""

    def __init__(self):
        self.s = START_S
        self.gpu_j = 0.0
        self.live = LiveState(slots_at=lambda _: (SLOT,), clock=self.clock)
        attribution = DeviceHolders(self.live, Attribution(), START_S)
        self.ledger = Ledger(
            self.live, attribution, EmptyArchive(), clock=self.clock, is_alive=lambda _: True
        )
        self.collector = SeriesCollector(
            "1.2.3", self.live, self.ledger, [FixedServices()], clock=self.clock
        )

    def clock(self):
        return ClockReading(self.s, START_AT + self.s - START_S, self.s)

    def watts(self):
        return BUSY_W if BEGIN_S <= self.s < END_S else IDLE_W

    def live_through(self):
        """Run the scenario from START_S to NOW_S."""
        gpus = tuple(
            GpuInfo(i, uuid, "NVIDIA H200", "Hopper", f"00000000:0{i}:00.0", "570.00")
            for i, uuid in (LABELS, ("1", LOST_UUID))
        )
        failure = GpuFailure(1, "GPU is lost")
        self.live.take_worker([GpuCount(2), *gpus, failure])
        self.live.take_worker([ReadingChanges.of(UUID, GPU_READINGS)])
        self.live.take_worker([XidReporting(UUID)])
        self.poll_until(BEGIN_S)
        self.live.take_worker([ReadingChanges.of(UUID, LATER_READINGS)])
        self.live.take_worker([XidError(UUID, 31)])
        request = RunStart(
            workload="training", run_id="ended", gpus=["0"], labels={"model": 'a "b"'}
        )
        run = self.begin(request)
        self.ledger.phase("ended", "warmup")
        self.poll_until(PHASE_S)
        self.ledger.work("ended", "rank-0", {"steps": 10.0})
        self.ledger.phase("ended", "measure")
        self.poll_until(END_S)
        self.ledger.stop(run, RunEnd(outcome="ok", work={"requests": 3.0}, results={"loss": 0.5}))
        self.ledger.release(run)
        self.poll_until(END_S + 0.5)
        self.ledger.finish(run)
        self.poll_until(NEXT_BEGIN_S)
        owner = CgroupOwner("user", "1000", "")
        labels = {"discovered": "user", "user": "ada"}
        self.ledger.begin_discovered(
            DiscoveredRun("running", owner, self.s - 0.5, labels, gpus=(UUID,))
        )
        self.poll_until(NOW_S)

    def begin(self, request):
        run, _ = self.ledger.begin(request)
        self.ledger.confirm_begin(run)
        return run

    def poll_until(self, until_s):
        while self.s < until_s:
            self.gpu_j += self.watts() * PERIOD_S
            self.s += PERIOD_S
            poll = Poll(GPU, self.s - 0.001, self.s, self.gpu_j, self.watts(), self.watts())
            self.live.take_worker([poll])
            if self.s % 1 == 0:
                self.each_second()

    def each_second(self):
        polls = [
            Poll(device, self.s, self.s, self.gpu_j * share)
            for device, share in ((PACKAGE, 1.0), (CORE, 0.5))
        ]
        method = Reading(m.CPU_ENERGY_METHOD, ("0", "rapl"), 1.0)
        self.live.take_batch("rapl", Batch((method,), tuple(polls)), 0.001, 1.0)
        board = Poll(BOARD, self.s, self.s, instant_w=500.0)
        power = Reading(m.HWMON_POWER, ("power_meter-ACPI000D:00", "Module Power Socket 0"), 500.0)
        self.live.take_batch("hwmon", Batch((power,), (board,)), 0.001, 1.0)
        self.live.take_batch("host", Batch(HOST), 0.001, 5.0)
        self.live.take_batch("processes", Batch(PROCESSES), 0.001, 5.0)
        pod = Reading(m.GPU_POD_INFO, (*LABELS, "default", "trainer", "main"), 1.0)
        unknown = Reading(m.POD_UNRESOLVED_DEVICES, ("no_slice",), 1.0)
        self.live.take_batch("kubelet", Batch((pod, unknown)), 0.001, 10.0)
        self.live.failed(
            "carbon", SourceError("no route to host", "check the network"), 0.5, 86_400.0
        )
        self.live.age(self.s)
        self.live.check_energies(self.s)
        self.ledger.tick()
        self.ledger.attribution.tick(self.ledger.runs.values(), self.s)
