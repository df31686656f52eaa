"""Runs and phases of concurrent threads and asyncio tasks."""

import asyncio
import threading

import wattline


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def states(api):
    return sorted((run.workload, run.state) for run in api.runs.values())


def test_measure_concurrent_tasks_have_a_run_each(api):
    @wattline.measure("request", quiet=True)
    async def serve(own, other):
        own.set()
        await other.wait()

    async def serve_both():
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(serve(first, second), serve(second, first))

    asyncio.run(serve_both())
    assert states(api) == [("request", "ended")] * 2
    assert api.bodies("/phase") == []


def test_measure_concurrent_threads_have_a_run_each(api):
    barrier = threading.Barrier(2)
    in_threads(*[wattline.measure("request", quiet=True)(barrier.wait)] * 2)

    assert states(api) == [("request", "ended")] * 2
    assert api.bodies("/phase") == []


def test_run_of_another_thread_does_not_give_its_gpus(api):
    started, ended = threading.Event(), threading.Event()

    def outer():
        with wattline.run("outer", gpus="1", quiet=True):
            started.set()
            ended.wait()

    def other():
        started.wait()
        with wattline.run("other", quiet=True):
            pass
        ended.set()

    in_threads(outer, other)
    gpus = {run.workload: [gpu.uuid for gpu in run.gpus] for run in api.runs.values()}
    assert gpus == {"outer": ["GPU-1"], "other": []}


def test_run_of_a_task_within_a_run_has_its_gpus(api):
    async def inner():
        with wattline.run("inner", quiet=True):
            pass

    async def run_both():
        with wattline.run("outer", gpus="1", quiet=True):
            await asyncio.create_task(inner())

    asyncio.run(run_both())
    assert {run.workload: [gpu.uuid for gpu in run.gpus] for run in api.runs.values()}["inner"] == [
        "GPU-1"
    ]


def test_phase_that_overlaps_one_of_another_task_is_declared(api, capfd):
    @wattline.measure("forward")
    async def forward(own, other):
        own.set()
        await other.wait()

    async def train():
        first, second = asyncio.Event(), asyncio.Event()
        with wattline.run("train", quiet=True) as run, run.phase("epoch"):
            await asyncio.gather(forward(first, second), forward(second, first))

    asyncio.run(train())
    assert [body["name"] for body in api.bodies("/phase")] == ["epoch", "forward", "epoch", "rest"]
    assert api.only_run.results == {"phases_not_recorded": 1}
    assert (
        capfd.readouterr().err.count(
            "phase 'forward' of another thread or task is open, and a run has one phase"
        )
        == 1
    )


def test_phases_of_threads_in_turn_are_recorded(api):
    with wattline.run("train", quiet=True) as run:

        def validate():
            with run.phase("validation"):
                pass

        run.phase("train")
        in_threads(validate)
    assert [body["name"] for body in api.bodies("/phase")] == ["train", "validation", "train"]
    assert api.only_run.results == {}
