"""Energy in the files of ML.ENERGY and InferenceX: 500 W for 20 s, 10 requests, 500 and 1,000
tokens.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analyzer.node import NodeRun
from tests.analyzer.run_reports import run_report
from wattline.figures import Figure
from wattline_analyzer.report.compatible.benchmarks import inference_x_files, ml_energy_files

RATES = (("requests", 0.5), ("prompt_tokens", 25.0))


def document(folder, name):
    return json.loads((folder / name).read_text())


def test_inference_x_keys_have_the_energy_of_the_run(compatible_folder):
    assert document(compatible_folder("inferencex", rates=RATES), "power.json") == {
        "power_metric_schema_version": 2,
        "power_valid": 1,
        "avg_power_w": 250.0,
        "avg_total_gpu_power_w": 500.0,
        "total_gpu_energy_j": 10_000.0,
        "joules_per_successful_query": 1_000.0,
        "joules_per_input_token": 20.0,
        "joules_per_output_token": 10.0,
        "joules_per_total_token": 6.666667,
    }


def test_inference_x_power_of_a_shared_gpu_is_not_valid(tmp_path):
    run = NodeRun(work={"requests": 10.0, "prompt_tokens": 500.0, "generated_tokens": 1_000.0})
    report = run_report(tmp_path, run, other_runs=[NodeRun("other")])

    power = json.loads(inference_x_files(report, None)["power.json"])
    assert power == {"power_metric_schema_version": 2, "power_valid": 0}


def test_benchmark_files_are_not_written_for_a_part_of_the_energy(tmp_path):
    run = NodeRun(work={"requests": 10.0, "prompt_tokens": 500.0, "generated_tokens": 1_000.0})
    report = run_report(tmp_path, run)
    part = Figure(5_000.0, rest=(0.0, math.inf), reason="the energy of one GPU is unknown")
    partly = replace(report, energies=replace(report.energies, by_component={"gpu": part}))

    assert inference_x_files(report, None).keys() == {"power.json"}
    assert inference_x_files(partly, None) == {}
    assert ml_energy_files(partly, None) == {}


def test_ml_energy_results_have_the_energy_of_the_run(compatible_folder):
    results = document(compatible_folder("ml-energy", rates=RATES), "results.json")

    # the fields that the leaderboard requires
    assert {
        name: results[name]
        for name in ("num_prompts", "completed", "total_input_tokens", "total_output_tokens")
    } == {
        "num_prompts": 10,
        "completed": 10,
        "total_input_tokens": 500,
        "total_output_tokens": 1_000,
    }
    assert (results["duration"], results["steady_state_duration"]) == (20.0, 20.0)
    assert results["steady_state_energy"] == pytest.approx(10_000)
    assert results["steady_state_energy_per_token"] == pytest.approx(10)
    assert results["request_throughput"] == pytest.approx(0.5)
    assert results["output_throughput"] == pytest.approx(50)
    assert results["total_token_throughput"] == pytest.approx(75)
    assert results["entire_benchmark_measurement"]["gpu_energy"] == {
        "0": pytest.approx(6_000),
        "1": pytest.approx(4_000),
    }


def test_ml_energy_results_are_read_by_its_own_library(compatible_folder, tmp_path):
    """`pip install --group trackers`; the library also needs times of tokens, which the benchmark
    writes itself.
    """
    records = pytest.importorskip("mlenergy.data.records")
    results = document(compatible_folder("ml-energy", rates=RATES), "results.json")
    results["results"] = [{"success": True, "itl": [0.02, 0.02]}]
    folder = Path(
        "llm/h100/current/run/llm/gpqa/results/org/tiny/H100/num_gpus+2+max_num_seqs+1+seed+1"
    )
    write(tmp_path / folder / "results.json", results)
    configs = tmp_path / "configs"
    write(configs / "gpqa/org/tiny/model_info.json", {"total_parameters_billion": 0.1})
    write(configs / "gpqa/org/tiny/H100/monolithic.config.yaml", {})

    (run,) = records.LLMRuns.from_raw_results(tmp_path, config_dir=configs, stable_only=False)

    assert run.steady_state_energy_joules == pytest.approx(10_000)
    assert run.energy_per_token_joules == pytest.approx(10)
    assert run.energy_per_request_joules == pytest.approx(1_000)
    assert run.avg_power_watts == pytest.approx(500)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("tool", ["inferencex", "ml-energy"])
def test_benchmark_files_need_requests_and_prompt_tokens(compatible_folder, tool):
    assert not compatible_folder(tool).exists()


def test_report_names_tools_without_a_file(compatible_folder, call, tmp_path):
    history = next(compatible_folder("ai-energy-score").parent.parent.glob("*.sqlite"))
    tools = (
        "--compatible",
        "ai-energy-score",
        "--compatible",
        "inferencex",
        "--compatible",
        "eu-gpai",
    )

    code, _, stderr = call(
        "report", "--source", history, "--run-id", "job", "--out", tmp_path / "out", *tools
    )

    assert code == 0
    assert "no file of inferencex, eu-gpai: the run has no power of any GPU" in stderr
