"""Function whose calls are measured: a plain or an async one, or one that returns a coroutine or a
generator.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

from wattline.runs import open_runs

Opening = Callable[[], contextlib.AbstractContextManager[Any]]


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def measured(function: Any, opening: Opening) -> Any:
    """Return the function; each call is within the context manager that `opening` returns.

    A coroutine or a generator that the function returns is measured up to its end. Raises TypeError
    for a generator function, and for an object that is no function.
    """
    if isinstance(function, classmethod | staticmethod):
        return type(function)(measured(function.__func__, opening))
    if not callable(function):
        raise TypeError(
            f"cannot measure a {type(function).__name__}: it is no function; decorate a function"
        )
    kinds = (function, getattr(type(function), "__call__", None))  # noqa: B004  # of an object, its class has the method
    if any(inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
        name = name_of(function)
        raise TypeError(
            f"cannot measure {name}: it is a generator; measure the loop that uses it with "
            "wattline.run()"
        )

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        outer = open_runs.enclosing()
        with contextlib.ExitStack() as opened:
            opened.enter_context(opening())
            result = function(*arguments, **named)
            if inspect.iscoroutine(result):
                follow: Callable[..., Any] = _awaited
            elif inspect.isgenerator(result):
                follow = _iterated
            elif inspect.isasyncgen(result):
                follow = _iterated_async
            else:
                return result
            inner = open_runs.enclosing()
            rest = opened.pop_all()
        open_runs.set_enclosing(outer)
        return follow(result, rest, inner)

    @functools.wraps(function)
    async def call_async(*arguments: Any, **named: Any) -> Any:
        with opening():
            return await function(*arguments, **named)

    return call_async if any(map(inspect.iscoroutinefunction, kinds)) else call


async def _awaited(
    result: Coroutine[Any, Any, Any], opened: contextlib.ExitStack, inner: open_runs.Enclosing
) -> Any:
    with open_runs.within(inner), opened:
        return await result


def _iterated(
    result: Generator[Any, Any, Any], opened: contextlib.ExitStack, _: open_runs.Enclosing
) -> Generator[Any, Any, Any]:
    with opened:
        return (yield from result)


async def _iterated_async(
    result: AsyncIterator[Any], opened: contextlib.ExitStack, _: open_runs.Enclosing
) -> AsyncIterator[Any]:
    with opened:
        async for item in result:
            yield item
