"""Import of the events of runs: Wattline run folders and tenants."""

import json

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    single_report,
    write_nvidia_smi_log,
)
from wattline.figures import Figure


def record(folder, gpus):
    folder.mkdir()
    events = [
        {
            "event": "start",
            "t": BEGIN_S,
            "run_id": "ours-1",
            "workload": "llm",
            "labels": {"model": "tiny"},
            "gpus": gpus,
        }
        | {"command": ["x"], "config": {}},
        {"event": "phase", "t": BEGIN_S, "name": "warmup"},
        {"event": "phase", "t": BEGIN_S + 10, "name": "measure"},
        *(
            {
                "event": "iteration",
                "t": BEGIN_S + 10 + k,
                "contributor": "0",
                "index": k,
                "phase": "measure",
            }
            | {"latency_seconds": 1.0, "work": {"generated_tokens": 50}}
            for k in range(1, 21)
        ),
        {
            "event": "end",
            "t": BEGIN_S + 30,
            "outcome": "ok",
            "exit_code": 0,
            "work": {"generated_tokens": 1_000},
        },
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))


@pytest.mark.parametrize("text", ["energy_joules: [1, 2]", "energy_joules: {gpu: {GPU-a: -5.0}}"])
def test_run_record_with_invalid_energies_is_refused(call, tmp_path, text):
    record(tmp_path / "run", ["GPU-a"])
    (tmp_path / "run" / "metrics.yml").write_text(f"{text}\n")

    code, _, stderr = call("import", tmp_path / "run", "--out", tmp_path / "h.sqlite")

    assert code == 1
    assert "energy_joules: " in stderr
    assert stderr.count("\n") == 1


def test_run_record_without_energy_of_a_gpu_has_a_warning(imported, tmp_path):
    record(tmp_path / "run", ["GPU-a", "GPU-b"])
    (tmp_path / "run" / "metrics.yml").write_text("energy_joules: {gpu: {GPU-a: 6000.0}}\n")

    report = single_report(imported(tmp_path / "run"))

    assert report.headline.value == 6_000
    assert len(finding_texts_of(report, "gpus_without_energy")) == 1


def test_run_record_with_negative_work_is_refused(call, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    events = tmp_path / "run" / "events.jsonl"
    events.write_text(
        events.read_text().replace('"generated_tokens": 1000', '"generated_tokens": -1000')
    )

    code, _, stderr = call("import", tmp_path / "run", "--out", tmp_path / "h.sqlite")

    assert code == 1
    assert "work: an amount is negative" in stderr


def test_run_record_with_power_log_gives_energy_per_token(imported, tmp_path):
    # warm-up 10 s at 100 W, then 20 s at 300 W: 6,000 J for 1,000 tokens
    record(tmp_path / "run", ["GPU-a"])
    log = write_nvidia_smi_log(
        tmp_path / "log.csv", [(t - 0.005, 100 if t < 10 else 300) for t in range(-5, 40)]
    )

    report = imported(tmp_path / "run", log)["ours-1"]

    work = report.work[0]
    assert work.phases == ("measure",)
    assert work.energy_per_unit.value == pytest.approx(6.0, rel=1e-3)
    assert report.duration_s == 30


def test_run_record_has_ledger_energy_and_interval(imported, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    (tmp_path / "run" / "metrics.yml").write_text(
        "energy_joules: {gpu: {GPU-a: 6500.0}}\nenergy_uncertainty_joules: {gpu: {GPU-a: 12.0}}\n"
    )

    report = imported(tmp_path / "run")["ours-1"]

    assert report.devices[0].energy == Figure(6_500, 12)


def tenant(folder, name, begin_s, end_s):
    path = folder / "pair" / name / "events.jsonl"
    path.parent.mkdir(parents=True)
    records = [
        {
            "type": "run_start",
            "timestamp": begin_s,
            "model_name": "distilgpt2",
            "batch_size": 8,
            "seq_len": 128,
        },
        *({"type": "iteration", "iter": k, "latency_ms": 8.0} for k in range(100)),
        {
            "type": "run_end",
            "timestamp": end_s,
            "p99_ms": 9.0,
            "avg_ms": 8.0,
            "tokens_processed": 102_400,
        },
        {"type": "time_elapsed", "sec": 0.9},
    ]
    path.write_text("\n".join(map(json.dumps, records)))


def test_power_log_gives_each_tenant_energy_of_its_time(imported, tmp_path):
    tenant(tmp_path / "data", "gpt2_1", BEGIN_S + 10, BEGIN_S + 20)
    tenant(tmp_path / "data", "gpt2_2", BEGIN_S + 10, BEGIN_S + 30)
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 250) for t in range(41)])

    first, second = imported(tmp_path / "data", log).values()

    assert (component_energy_j(first), component_energy_j(second)) == (
        pytest.approx(2_500),
        pytest.approx(5_000),
    )
    assert first.labels["tenant"] == "gpt2_1"
    assert first.labels["experiment"] == "pair"
    assert {work.unit: work.amount for work in first.work} == {
        "prompt_tokens": 102_400,
        "steps": 100,
    }
    assert first.results["latency_seconds_p99"] == pytest.approx(0.009)
    assert finding_texts_of(first, "shared")


def test_import_mentions_time_zone_only_for_local_times(call, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])

    *_, of_unix_times = call("import", tmp_path / "run", "--out", tmp_path / "ours.sqlite")
    *_, of_local_times = call("import", log, "--out", tmp_path / "log.sqlite")

    assert "wrote 1 run, 11 samples" in of_unix_times
    assert "times without a time zone" not in of_unix_times
    assert "for times without a time zone" in of_local_times


def test_tenant_events_without_power_are_tenants(call, imported, tmp_path):
    """Overlap from 10 to 20 s: all of the first, half of the second's 20 s; 102,400 prompt tokens
    each.
    """
    tenant(tmp_path / "data", "gpt2_1", BEGIN_S + 10, BEGIN_S + 20)
    tenant(tmp_path / "data", "gpt2_2", BEGIN_S + 10, BEGIN_S + 30)
    reports = imported(tmp_path / "data")

    command = (
        "tenants",
        "--experiment",
        "pair",
        "--source",
        tmp_path / "history.sqlite",
        "--since",
        "36500d",
    )
    code, stdout, stderr = call(*command, "--format", "json")

    assert code == 0, stderr
    (mix,) = json.loads(stdout)["mixes"]
    assert mix["overlap_seconds"] == pytest.approx(10)
    assert mix["figures"]["gpt2_1:prompt_tokens_per_second"]["value"] == pytest.approx(10_240)
    assert mix["figures"]["gpt2_2:prompt_tokens_per_second"]["value"] == pytest.approx(5_120)
    assert {report.headline for report in reports.values()} == {None}
    (text,) = {
        finding.text
        for report in reports.values()
        for finding in report.findings
        if finding.code == "no_energy"
    }
    assert "the imported files hold no power" in text
