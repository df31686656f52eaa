def test_sleep_duration_is_run_duration(exporter):
    done = exporter.workloads("job", "sleep", "--duration", "0.3", "-l", "state=idle")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.labels, run.outcome) == ("sleep", {"state": "idle"}, "ok")
    assert run.duration_seconds >= 0.3
