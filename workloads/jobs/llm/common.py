"""What the jobs with a transformer do alike: begin the run, load, measure for so long, and end in one line."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator

from workloads import client
from workloads.jobs.llm.models import ModelError
from workloads.runner import shadow_check as shadow
from workloads.runner.interruption import OF_A_KERNEL_S, unwound_when_signalled


def run_job(name: str, options: argparse.Namespace, measure: Callable[[client.Run, argparse.Namespace], None]) -> int:
    """Whatever is wrong ends the process with one line."""
    shadow.exit_if_shadowed()
    with unwound_when_signalled(OF_A_KERNEL_S), client.run(name) as run:
        try:
            measure(run, options)
        except ModelError as error:
            sys.exit(f"{name}: {error}")
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            sys.exit(f"{name}: {_cause(error)}")
    return 0


def rounds(
    count: int | None,
    duration_s: float | None,
    any_process: Callable[[bool], bool] = bool,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """`count` of them, or as many as begin within `duration_s`, at least one. All processes stop at the same one."""
    end_s = now() + (duration_s or 0.0)
    for index in itertools.count():
        if duration_s is None:
            is_over = count is not None and index >= count
        else:
            is_over = index > 0 and any_process(now() >= end_s)
        if is_over:
            return
        yield index


def _cause(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return f"{text}; a smaller --batch-size, shorter texts or --dtype bfloat16 need less memory"
    return text
