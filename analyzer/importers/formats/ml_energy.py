"""Reader of the ML.ENERGY benchmark's results.json of an LLM, and its prometheus.json.

The run is the steady state, whose times are in prometheus.json. Its energy is Zeus's, from the GPUs' counters, and its
tokens are those of that window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyzer.importers.content import ALL_GPUS, FileContent, FileEnergy, FileRun, ReadOptions, UnreadableError
from analyzer.importers.text import finite_numbers, read_json_object

FORM = "ml-energy"
TIMES_FILE = "prometheus.json"
_LABELS = {"model_id": "model", "gpu_model": "gpu_model", "num_gpus": "num_gpus", "max_num_seqs": "max_num_seqs"}


def is_ml_energy(document: dict[str, Any]) -> bool:
    return {"steady_state_energy", "steady_state_duration"} <= set(document)


def read_ml_energy(path: Path, _options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    document, beside = read_json_object(path), path.with_name(TIMES_FILE)
    numbers = finite_numbers(document)
    if not is_ml_energy(numbers):
        raise UnreadableError(
            f"cannot import {path}: no steady_state_energy and steady_state_duration; "
            "check that it is results.json of an LLM"
        )
    times = finite_numbers(read_json_object(beside)) if beside.exists() else {}
    if not {"steady_state_start_time", "steady_state_end_time"} <= set(times):
        raise UnreadableError(
            f"cannot import {path}: its time is unknown; put {TIMES_FILE} with steady_state_start_time in its folder"
        )
    energy_j, per_token_j = numbers["steady_state_energy"], numbers.get("steady_state_energy_per_token", 0.0)
    content = FileContent(path, FORM)
    content.runs.append(
        FileRun(
            name=f"ml-energy-{document.get('model_id', 'llm')}",
            workload="ml-energy",
            start_s=times["steady_state_start_time"],
            end_s=times["steady_state_end_time"],
            labels={label: str(document[name]) for name, label in _LABELS.items() if name in document},
            work={"generated_tokens": energy_j / per_token_j} if per_token_j > 0 else {},
            results={"tokens_per_second": numbers["output_throughput"]} if "output_throughput" in numbers else {},
            energies=(FileEnergy("gpu", ALL_GPUS, energy_j),),
            duration_s=numbers["steady_state_duration"],
        )
    )
    return content
