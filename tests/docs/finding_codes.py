"""Findings of the analyzer: their codes and levels from its code, their meanings from the table
below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("bad", "warning", "note")
MEANINGS = {
    "labels_cut": "The imported file has more or longer labels than a run can have; those beyond "
    "are left out.",
    "counter_leap": "Samples of a GPU's counter contradict their neighbours or rise faster than "
    "any GPU can.",
    "gpus_by_order": "The imported log names no GPU; the order of the lines of each time "
    "distinguishes its GPUs.",
    "whole_seconds": "The imported file has only the second in which it was written; start and end "
    "are known to 2 s.",
    "gpus_without_energy": "The imported file lacks the energy of some of the run's GPUs; that of "
    "the run is higher.",
    "unused_gpu": "A GPU of a run on several GPUs was at 0 % utilization, but its energy counts "
    "for the run.",
    "no_energy": "No energy was measured; the report has work, results and times only.",
    "counter_dead": "The energy counter did not rise; its energy is the integral of scraped power, "
    "or is left out.",
    "integral_coarse": "The integral of scraped power differs by more than 5 % because the range "
    "has few samples.",
    "work_is_result": "The run reported a score or a time as work; it is shown as a result.",
    "alias": "Two instances show the same node; it is counted once.",
    "aliasing": "The load's period is near that of a sensor that sees a part of the time; the "
    "integral may be far off.",
    "aliasing_unknown": "The sensor sees a part of the time; the samples cannot show whether the "
    "load aliases with it.",
    "begin_missing": "The source's samples start after the run did; energy and duration come from "
    "the ledger.",
    "bound_not_checked": "The uncertainty of the ledger's energy is unknown; it is not compared "
    "with the raw samples.",
    "cached_samples": "The exporter repeats cached values between reads; repeated samples are left "
    "out.",
    "calibration_unused": "The calibration file names a GPU that took no part in the run.",
    "carbon_low": "The given carbon intensity is below that of any grid, probably kg in place of "
    "g.",
    "carbon_fallback": "The carbon provider did not answer; the country's yearly mean replaced it.",
    "carbon_missing": "No carbon intensity was known for a part of the run or for all of it.",
    "carbon_old": "The carbon intensity comes from an old response of the provider: its forecast.",
    "clock_apart": "The run's timestamps and those of the samples disagree; the report uses the "
    "ledger alone.",
    "clock_mixed": "Samples of two clocks or of two exporters overlap in one series; the report "
    "uses the ledger alone.",
    "clock_set": "The node's wall clock was set during the run; energy and duration are not "
    "affected.",
    "counted_once": "Two exporters show the same device; it is counted once.",
    "counter_implausible": "Counter and scraped power differ by more than the scrape interval "
    "explains.",
    "counter_integral_apart": "Energy counter and integral of power differ by more than 5 %.",
    "counter_reset": "The energy counter restarted during the run; energy between the last sample and "
    "the restart is missing.",
    "coverage": "The device was not read during a part of the run.",
    "divided": "Other processes used the device during the run; the attributed share is reported "
    "as well.",
    "duplicate_samples": "A series has two different values at one time; the first one counts.",
    "emissions_left_out": "A node of the run has no carbon intensity, so that the recorded "
    "emissions of a component are not those of the run.",
    "energy_unknown": "No reading of a device of the run is known. The energies of its component "
    "and of the run are lower limits, and energies per unit are unknown.",
    "estimate": "The CPU energy is an estimate from utilization; its uncertainty is not known.",
    "gap": "Samples are missing; a counter bridges the gap, an integral leaves it out.",
    "gpu0_only": "The imported file holds the power of GPU 0 only.",
    "idle_unknown": "The GPU's utilization is not exported, so its idle power is not known.",
    "impossible_power": "A power reading exceeds 1.5 times the highest power limit.",
    "imported": "The run comes from an imported file.",
    "latency_buckets": "Latencies come from histograms of the servers, so they are as coarse as "
    "the buckets.",
    "no_sci": "SCI cannot be computed, because no carbon intensity covers all of the energy.",
    "no_tokens": "The token servers counted no generated token in the range.",
    "node_unknown": "Two exporters may show the same CPUs under different node names; one of them "
    "is left out.",
    "nominal_time": "The imported file computes its total from a nominal interval; the report uses "
    "its timestamps.",
    "not_calibrated": "The calibration file has no entry for this GPU.",
    "not_ended": "The end of the run is not known; the figures come from the latest scrape.",
    "not_restated": "The emissions could not be restated; the ledger's emissions stand.",
    "outcome": "The run failed or was interrupted; its work may be incomplete.",
    "outside_bound": "The ledger's energy is outside the bound computed from raw samples.",
    "phase_too_short": "A phase is too short for the sensor's update interval; its GPU energy is "
    "left out.",
    "requests": "The server of the run reported requests; analyzer requests divides the energy "
    "among them.",
    "rapl_wrap": "A RAPL counter wrapped: repaired (note), or not repairable without the counter's "
    "range (warning).",
    "rapl_wrap_unseen": "The scrape interval is too long to detect every wrap of the RAPL counter.",
    "restated_missing": "No intensity is known for a part of the energy; restated emissions do not "
    "include it.",
    "restated_partly": "A part of the energy is restated with intensities that are not actual "
    "ones.",
    "restated_unknown": "The restating file does not state the quality of its intensities.",
    "run_too_short": "The uncertainty of the run's energy is larger than the energy; the figures "
    "are of no use.",
    "scraped_power": "The device has no energy counter; its energy is the integral of scraped "
    "power, without interval.",
    "server_restarts": "Token servers started or stopped in the range; the upper limit includes "
    "tokens not scraped.",
    "shared": "Other runs used the device at the same time; the headline is the energy of the "
    "whole device.",
    "simulated": "The GPUs are simulated.",
    "stuck_sensor": "The power sensor repeated one value; do not use the energy of this device.",
    "suspect_*": "The exporter marked the energy as suspect: `frozen`, `stuck`, `implausible`, "
    "`aliasing` or "
    "`disagrees`.",
    "systematic_band": "Known systematic error of the sensor for this architecture; not part of "
    "the interval.",
    "tagged_runs": "Runs were open in the untagged range; its energy includes theirs.",
    "token_counters": "Source and uncertainty of the work that the token servers counted.",
    "uncovered": "Samples cover a part of the time only; the energy covers the same part.",
    "units_uncovered": "Work covers the whole range and energy a part of it; no energy per unit is "
    "reported.",
    "untagged_range": "The report covers a range of time without a run; it names the exporters "
    "used.",
    "wall_meter": "Energy of the wall meter that no sensor of the node covers.",
    "wall_meter_below": "The sensors report more energy than the wall meter; one of them is wrong.",
    "wall_meter_short": "The wall meter covers too little of the run for a comparison.",
    "whole_log": "The run is the whole imported log, idle time included.",
}


def collect_findings() -> dict[str, set[str]]:
    """Return the levels of each code: the first two arguments of each `Finding(…)` in the analyzer.

    A code with a computed part ends with `*`; a computed level means any level.
    """
    result: dict[str, set[str]] = {}
    for path in sorted((ROOT / "analyzer").rglob("*.py")):
        for level, code in _findings(ast.parse(path.read_text())):
            result.setdefault(code, set()).update(level)
    return result


def table() -> str:
    rows = [
        f"| `{code}` | {', '.join(level for level in LEVELS if level in levels)} | "
        f"{MEANINGS[code]} |"
        for code, levels in sorted(collect_findings().items())
    ]
    return "\n".join(["| code | level | meaning |", "|---|---|---|", *rows])


def _findings(tree: ast.Module) -> Iterator[tuple[set[str], str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "Finding":
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            level, code = (
                named.get(name) or node.args[index] for index, name in enumerate(("level", "code"))
            )
            yield (
                (
                    {level.value}
                    if isinstance(level, ast.Constant) and isinstance(level.value, str)
                    else set(LEVELS)
                ),
                _code(code),
            )


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _code(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return f"{node.values[0].value!s}*"
    message = f"the code of a finding is not a literal: {ast.unparse(node)}"
    raise ValueError(message)
