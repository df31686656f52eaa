"""Kinds of functions that `wattline.measure` accepts."""

import asyncio
import functools

import pytest

import wattline


async def pause(api, name="f"):
    await asyncio.sleep(0)
    assert api.only_run.state == "running"
    return name


def returned(function):
    """Return a plain function that returns what `function` returns."""

    def call(*arguments):
        return function(*arguments)

    return call


class Model:
    async def __call__(self, api):
        return await pause(api)

    @wattline.measure("method", quiet=True)
    @classmethod
    def name(cls):
        return cls.__name__

    @wattline.measure("method", quiet=True)
    @staticmethod
    def twice(number):
        return 2 * number


@pytest.mark.parametrize(
    "function",
    [pause, Model(), functools.partial(pause), returned(pause)],
    ids=["async", "call", "partial", "returned"],
)
def test_measure_awaits_coroutines_within_the_run(api, function):
    measured = wattline.measure("f", quiet=True)(function)

    assert asyncio.run(measured(api)) == "f"
    assert (api.only_run.state, api.only_run.outcome) == ("ended", "ok")


def test_measure_coroutines_of_one_context_have_a_run_each(api):
    measured = wattline.measure("f", quiet=True)(lambda: asyncio.sleep(0))

    async def both():
        await asyncio.gather(measured(), measured())

    asyncio.run(both())
    assert [run.state for run in api.runs.values()] == ["ended", "ended"]


def test_measure_returned_generator_is_measured_while_it_is_iterated(api):
    batches = wattline.measure("batches", quiet=True)(lambda: (number for number in range(3)))

    for number in batches():
        assert api.only_run.state == "running", number
    assert api.only_run.state == "ended"


def test_measure_returned_async_generator_is_measured_while_it_is_iterated(api):
    async def numbers():
        yield 1

    async def read():
        return [
            (number, api.only_run.state)
            async for number in wattline.measure("n", quiet=True)(returned(numbers))()
        ]

    assert asyncio.run(read()) == [(1, "running")]
    assert api.only_run.state == "ended"


@pytest.mark.parametrize("call", [Model.name, Model().name])
def test_measure_above_classmethod_measures_the_method(api, call):
    assert call() == "Model"
    assert (api.only_run.workload, api.only_run.state) == ("method", "ended")


def test_measure_above_staticmethod_measures_the_method(api):
    assert (Model.twice(2), Model().twice(3)) == (4, 6)
    assert [run.state for run in api.runs.values()] == ["ended", "ended"]


def test_measure_of_what_is_no_function_raises():
    with pytest.raises(TypeError, match="cannot measure a property: it is no function"):
        wattline.measure(property(lambda self: 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "0"}, "unexpected keyword argument 'gpu'"),
        ({"labels": ["x"]}, "labels has the type list; use the form labels="),
        ({"exporter": 5}, "exporter has the type int"),
        ({"unit": 5}, "unit has the type int"),
    ],
)
def test_measure_invalid_option_raises_at_the_decoration(options, message):
    with pytest.raises(TypeError, match=message):
        wattline.measure("f", **options)


def test_run_labels_of_a_wrong_type_raise_before_the_job():
    with pytest.raises(TypeError, match="cannot start a run: labels has the type list"):
        wattline.run("f", labels=["x"])
