"""Work and end of runs whose jobs have child processes, workers and threads."""

import pytest


def test_run_forked_child_counts_own_work_without_ending(exporter, script):
    exporter.python(
        script("""
        with wattline.run("train") as run:
            run.work(steps=1)
            if os.fork() == 0:
                run.work(steps=10)
                sys.exit(0)
            os.wait()
            state = run._api.get(f"/runs/{run.run_id}")["state"]
            run.work(steps=100)
        print(state)
        """)
    )

    run = exporter.api.only_run
    assert run.work == {"steps": 111}
    assert len(exporter.api.totals[run.run_id]) == 2
    assert len(exporter.api.bodies("/end")) == 1


def test_run_multiprocessing_workers_report_all_work(exporter, script):
    exporter.python(
        script("""
        import multiprocessing

        def work(run):
            for _ in range(10):
                run.work(samples=1)

        with wattline.run("train") as run:
            fork = multiprocessing.get_context("fork")
            children = [fork.Process(target=work, args=(run,)) for _ in range(3)]
            for child in children:
                child.start()
            for child in children:
                child.join()
        """)
    )

    run = exporter.api.only_run
    assert run.work == {"samples": 30}
    assert len(exporter.api.totals[run.run_id]) == 3


def test_run_concurrent_threads_report_all_work(exporter, script):
    exporter.python(
        script("""
        import threading
        with wattline.run("serve") as run:
            def serve():
                for _ in range(1000):
                    run.work(requests=1)
            threads = [threading.Thread(target=serve) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        """)
    )

    assert exporter.api.only_run.work == {"requests": 8000}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_run_passed_to_child_counts_own_work_without_ending(exporter, script, method):
    done = exporter.python(
        script(f"""
        import multiprocessing

        def work(run):
            run.work(samples=1)

        if __name__ == "__main__":
            with wattline.run("train") as run:
                run.work(samples=10)
                child = multiprocessing.get_context({method!r}).Process(target=work, args=(run,))
                child.start()
                child.join()
                print(child.exitcode, run._api.get(f"/runs/{{run.run_id}}")["state"])
        """)
    )

    run = exporter.api.only_run
    assert (done.stdout, run.work) == ("0 running\n", {"samples": 11})
    assert len(exporter.api.totals[run.run_id]) == 2


def test_phase_of_a_forked_child_is_not_recorded(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("train") as run:
            run.phase("train")
            if os.fork() == 0:
                for name in ("child", "further"):
                    with run.phase(name):
                        run.work(steps=1)
                sys.exit(0)
            os.wait()
        """)
    )

    assert exporter.api.bodies("/phase") == [{"name": "train"}]
    assert exporter.api.only_run.work == {"steps": 2}
    assert done.stderr.count("only the process that started the run changes its phase") == 1
