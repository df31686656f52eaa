"""Energy of LLM inference in the files of benchmarks: ML.ENERGY and InferenceX.

Both have the energy of the whole GPUs in the window in which the requests were answered: the phases
with generated tokens (`measure` of the job `llm-server`, without its warm-up), else the whole run.
No file is written for a run without requests, prompt tokens, generated tokens or GPU energy.

ML.ENERGY: keys and definitions of `results.json` as written by `mlenergy/llm/benchmark.py` of
ml-energy/benchmark and required by `scripts/build_data.py` of ml-energy/leaderboard. InferenceX:
power keys, version 2, as published by `utils/aggregate_power.py` and required by
`infx/results/agentic/validate_power.py` of SemiAnalysisAI/InferenceX. Roles (`prefill_…`,
`decode_…`) need separate GPUs, and percentiles of power its own samples; both are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from wattline.contract.work import energy_of_one
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.report.compatible.tool_format import ToolFormat

ML_ENERGY_TOOL = "ml-energy"
INFERENCE_X_TOOL = "inferencex"
_REQUESTS = "requests"
_PROMPT = "prompt_tokens"
_GENERATED = "generated_tokens"
_POWER_SCHEMA = 2
_DIGITS_OF_TOTALS = 3
_DIGITS_PER_UNIT = 6
"""Decimals of watts and joules, and of joules per query or token, as InferenceX writes them."""


@dataclass(frozen=True, slots=True)
class _Serving:
    """Answered requests and tokens of a run, with duration and GPU energy of the window in which
    they were answered.
    """

    requests: float
    prompt_tokens: float
    generated_tokens: float
    duration_s: float
    energy: Figure

    @classmethod
    def of(cls, report: Report) -> _Serving | None:
        """Return the serving of a run, None if one of its figures is unknown, partial or 0."""
        work = {one.unit: one for one in report.work}
        if "gpu" not in report.energy or any(
            unit not in work or work[unit].amount <= 0 for unit in (_REQUESTS, _PROMPT, _GENERATED)
        ):
            return None
        duration_s = report.duration_s
        energy = report.energy["gpu"]
        if names := work[_GENERATED].phases:
            phases = [phase for phase in report.phases if phase.name in names]
            if not phases or any("gpu" not in phase.energy for phase in phases):
                return None
            duration_s = math.fsum(phase.duration_s for phase in phases)
            energy = sum_of_correlated(phase.energy["gpu"] for phase in phases)
        energy = energy.complete()
        if duration_s <= 0 or energy.value is None or energy.value <= 0:
            return None
        amounts = work[_REQUESTS].amount, work[_PROMPT].amount, work[_GENERATED].amount
        return cls(*amounts, duration_s, energy)

    @property
    def power_w(self) -> float:
        return self.energy.scaled(1 / self.duration_s).number

    def joules_of_one(self, amount: float) -> float | None:
        """Return the energy of one request or token of an amount of them."""
        each = energy_of_one(self.energy, amount)
        return None if each is None else each.number


def ml_energy_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return results.json, with the window as its steady state."""
    serving = _Serving.of(report)
    if serving is None:
        return {}
    results = {
        "model_id": report.labels.get("model", report.workload),
        "gpu_model": next((device.name for device in report.gpus if device.name), None),
        "num_gpus": len(report.gpus),
        "num_prompts": round(serving.requests),
        "completed": round(serving.requests),
        "duration": serving.duration_s,
        "steady_state_duration": serving.duration_s,
        "steady_state_energy": serving.energy.number,
        "steady_state_energy_per_token": serving.joules_of_one(serving.generated_tokens),
        "total_input_tokens": round(serving.prompt_tokens),
        "total_output_tokens": round(serving.generated_tokens),
        "request_throughput": serving.requests / serving.duration_s,
        "output_throughput": serving.generated_tokens / serving.duration_s,
        "total_token_throughput": (serving.prompt_tokens + serving.generated_tokens)
        / serving.duration_s,
        "entire_benchmark_measurement": {
            "time": report.duration_s,
            "gpu_energy": {
                device.label.rpartition(" ")[2]: device.energy.value for device in report.gpus
            },
        },
    }
    return {"results.json": _text(results)}


def inference_x_files(report: Report, _: SampleTable) -> dict[str, bytes]:
    """Return the power keys of an aggregate; without measurements if GPUs are simulated, shared or
    partly covered.
    """
    serving = _Serving.of(report)
    if serving is None:
        return {}
    is_valid = not any(
        device.simulated or device.estimated or device.shared for device in report.gpus
    ) and all(device.is_covered for device in report.gpus)
    verdict: dict[str, float] = {
        "power_metric_schema_version": _POWER_SCHEMA,
        "power_valid": int(is_valid),
    }
    return {"power.json": _text(verdict | (_power(serving, len(report.gpus)) if is_valid else {}))}


def _power(serving: _Serving, gpus: int) -> dict[str, float]:
    tokens = serving.prompt_tokens + serving.generated_tokens
    totals = {
        "avg_power_w": serving.power_w / gpus,
        "avg_total_gpu_power_w": serving.power_w,
        "total_gpu_energy_j": serving.energy.number,
    }
    per_unit = {
        "joules_per_successful_query": serving.joules_of_one(serving.requests),
        "joules_per_input_token": serving.joules_of_one(serving.prompt_tokens),
        "joules_per_output_token": serving.joules_of_one(serving.generated_tokens),
        "joules_per_total_token": serving.joules_of_one(tokens),
    }
    return {name: round(value, _DIGITS_OF_TOTALS) for name, value in totals.items()} | {
        name: round(value, _DIGITS_PER_UNIT)
        for name, value in per_unit.items()
        if value is not None
    }


def _text(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


FORMATS = (
    ToolFormat(ML_ENERGY_TOOL, ml_energy_files, has_remarks=False),
    ToolFormat(INFERENCE_X_TOOL, inference_x_files),
)
