"""An exporter in virtual time with two GPUs of a known power, its scrapes and its state file."""

from collections import defaultdict

from wattline_exporter.attribution.owner_counters import OwnerCounters
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SavedTotals
from wattline_exporter.runs.admission import DiscoveredRun, RunEnd
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.limits import RunLimits
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.readings import (
    ClockReading,
    Device,
    GpuInfo,
    Poll,
    Slot,
)
from wattline_exporter.storage.state_file import StateFile
from wattline_exporter.web.series import SeriesCollector

UUIDS = ("GPU-1", "GPU-2")
SCRAPE_S = 15.0
START_S, START_AT = 1_000.0, 1_789_000_000.0
SLOT = Slot(0.0, 1e12, 360.0, "GB", "gb", "average", "actual")
"""360 g per kWh: 0.0001 g per joule."""
ENERGY, SECONDS = "wattline_owner_energy_joules_total", "wattline_owner_gpu_seconds_total"
EMISSIONS = "wattline_owner_emissions_grams_total"


class TwoGpuNode:
    """Two GPUs of a known power; scrapes each 15 s are in `scraped`."""

    def __init__(self, folder, **limits):
        self.folder = folder
        self.limits = RunLimits(**limits)
        self.s, self.watts, self.gpu_j = START_S, [80.0, 80.0], [0.0, 0.0]
        self.scraped = defaultdict(list)
        self.start()

    def start(self):
        """Start an exporter on the saved state."""
        self.file = StateFile(self.folder / "state")
        state = self.file.load()
        saved_s = state.saved_s or self.s
        totals = SavedTotals(state.totals, state.emissions, state.counters, saved_s, state.polls)
        energy_j = {device: total.energy_j for device, total in state.totals.items()}
        owners = OwnerCounters(state.owners, state.emissions)
        energies = Attribution(state.attributed, energy_j, state.idle_w, saved_s, owners=owners)
        self.live = LiveState(totals, slots_at=lambda _: (SLOT,), clock=self.clock)
        holders = DeviceHolders(self.live, energies, saved_s)
        self.ledger = Ledger(
            self.live,
            holders,
            self.file,
            clock=self.clock,
            is_alive=lambda _: True,
            limits=self.limits,
        )
        self.ledger.restore(state, same_boot=True)
        self.collector = SeriesCollector("1", self.live, self.ledger, clock=self.clock)
        gpus = tuple(
            GpuInfo(str(i), uuid, "NVIDIA H200", "Hopper", f"00000000:0{i}:00.0", "570.00")
            for i, uuid in enumerate(UUIDS)
        )
        self.live.take_worker(gpus)

    def clock(self):
        return ClockReading(self.s, START_AT + self.s - START_S, self.s)

    def run_for(self, seconds):
        for _ in range(round(seconds)):
            self.s += 1.0
            polls = []
            for i, uuid in enumerate(UUIDS):
                self.gpu_j[i] += self.watts[i]
                polls.append(
                    Poll(
                        Device("gpu", uuid),
                        self.s,
                        self.s,
                        self.gpu_j[i],
                        self.watts[i],
                        self.watts[i],
                    )
                )
            self.live.take_worker(polls)
            self.ledger.tick()
            self.ledger.attribution.tick(self.ledger.runs.values(), self.s)
            changes = self.ledger.take_changes()
            self.file.save(changes)
            self.ledger.confirm(changes)
            if self.s % SCRAPE_S == 0:
                self.scrape()

    def scrape(self):
        for reading in self.collector.series().readings:
            if reading.metric.name.startswith(
                ("wattline_owner_", "wattline_gpu_energy_joules_total")
            ):
                labels = dict(zip(reading.metric.labels, reading.labels, strict=True))
                key = (reading.metric.name, *sorted(labels.items()))
                self.scraped[key].append((self.clock().at, reading.value))

    def begin(self, run_id, owner, labels, gpus):
        found = DiscoveredRun(run_id, owner, self.s, labels, gpus=tuple(UUIDS[i] for i in gpus))
        return self.ledger.begin_discovered(found)

    def end(self, run):
        self.ledger.stop(run, RunEnd(outcome="ok"))
        self.ledger.release(run)
        self.ledger.finish(run)

    def values(self, name):
        """Return the true values by the labels other than component, basis and quality."""
        self.ledger.update()
        return {
            reading.labels: reading.value
            for reading in self.ledger.attribution_readings([], recorded=True)
            if reading.metric.name == name
        }

    def shared(self, kind, owner, workload, account=""):
        return self.values(ENERGY).get((kind, owner, account, workload, "gpu", "idle_shared"))


def job(number):
    return CgroupOwner("slurm", str(number), f"/slurm/job_{number}")
