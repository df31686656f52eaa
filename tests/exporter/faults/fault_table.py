"""Faults of GPU sensors, by name. Each changes the driver's answers from the time of the fault
on.
"""

from __future__ import annotations

import pynvml

from tests.exporter.faults.faulty_gpu import Answers, Fault, FaultyGpu


def errors(
    code: int, seconds: float = 1e9, share: float = 1.0, calls: tuple[str, ...] = ()
) -> Fault:
    """Fail calls with an NVML error for some time, a share of them at random."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if gpu.since_s < seconds and gpu.rng.random() < share:
            answers.error, answers.failing = code, calls

    return fault


def field_status(code: int, seconds: float) -> Fault:
    """Fail all fields, and the older calls, while the call for fields succeeds."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if gpu.since_s < seconds:
            answers.status, answers.error, answers.failing = code, code, ("counter", "power")

    return fault


def slow_calls(call_s: float, seconds: float = 1e9) -> Fault:
    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if gpu.since_s < seconds:
            answers.call_s = call_s

    return fault


def hang(seconds: float = 1e9) -> Fault:
    """Let one call take until the end of the fault."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        answers.call_s = max(0.0001, seconds - gpu.since_s)

    return fault


def counter(change) -> Fault:
    """Change the counter: `change(gpu, mJ)` returns its value, or None."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if answers.counter_mj is not None:
            gpu.memory.setdefault("at_fault", answers.counter_mj)
            answers.counter_mj = change(gpu, answers.counter_mj)

    return fault


def jump(joules: float, every_s: float = 1e9) -> Fault:
    return counter(lambda gpu, mj: mj + joules * 1e3 * (1 + int(gpu.since_s / every_s)))


def slope(ratio: float) -> Fault:
    return counter(lambda gpu, mj: gpu.memory["at_fault"] + ratio * (mj - gpu.memory["at_fault"]))


def frozen(seconds: float = 1e9) -> Fault:
    return counter(lambda gpu, mj: gpu.memory["at_fault"] if gpu.since_s < seconds else mj)


def garbled(value: float, share: float) -> Fault:
    return counter(lambda gpu, mj: value if gpu.rng.random() < share else mj)


def falls(joules: float, every_s: float = 1e9) -> Fault:
    return counter(lambda gpu, mj: mj - joules * 1e3 * (1 + int(gpu.since_s / every_s)))


def late(seconds: float) -> Fault:
    """Return the counter as it was some time ago."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        from wattline_exporter.simulation.sensors import counter_j

        if answers.counter_mj is not None:
            answers.counter_mj = round(counter_j(gpu.gpu, gpu.clock_s - seconds) * 1e3)

    return fault


def power(change, seconds: float = 1e9) -> Fault:
    """Change both powers: `change(gpu, mW)` returns the value."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if gpu.since_s < seconds:
            answers.instant_mw = change(gpu, answers.instant_mw)
            answers.average_mw = (
                None if answers.average_mw is None else change(gpu, answers.average_mw)
            )

    return fault


def no_counter(seconds: float = 1e9) -> Fault:
    return counter(lambda gpu, mj: None if gpu.since_s < seconds else mj)


def restarted(offset_j: float = 0.0, silent_s: float = 0.0) -> Fault:
    """Let the counter begin again; the driver is gone for `silent_s` before."""

    def fault(gpu: FaultyGpu, answers: Answers) -> None:
        if gpu.since_s < silent_s:
            answers.error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        elif answers.counter_mj is not None:
            gpu.memory.setdefault("at_restart", answers.counter_mj)
            answers.counter_mj += offset_j * 1e3 - gpu.memory["at_restart"]

    return fault


def value_type(kind: int) -> Fault:
    def fault(_gpu: FaultyGpu, answers: Answers) -> None:
        answers.kind = kind

    return fault


_CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "MEMORY": 20,
    "NO_DATA": 21,
    "IN_USE": 19,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "NOT_READY": 27,
    "UNKNOWN": 999,
}

WITH_COUNTER: dict[str, Fault] = {
    **{f"{name} for 0.1 s": errors(code, 0.1) for name, code in _CODES.items()},
    "IN_USE for 6 s": errors(_CODES["IN_USE"], 6.0),
    "NOT_SUPPORTED for 2 s": errors(_CODES["NOT_SUPPORTED"], 2.0),
    "TIMEOUT for 6 s": errors(_CODES["TIMEOUT"], 6.0),
    "UNKNOWN in 10 % of calls": errors(_CODES["UNKNOWN"], share=0.1),
    "NO_PERMISSION in 30 % of calls": errors(_CODES["NO_PERMISSION"], share=0.3),
    "NOT_SUPPORTED in 5 % of calls": errors(_CODES["NOT_SUPPORTED"], share=0.05),
    "fields without data for 3 s": field_status(_CODES["NO_DATA"], 3.0),
    "fields not supported permanently": errors(_CODES["NOT_SUPPORTED"], calls=("fields",)),
    "power not supported for 6 s": power(lambda _gpu, _mw: None, 6.0),
    "lost for 6 s": errors(_CODES["GPU_IS_LOST"], 6.0),
    "lost permanently": errors(_CODES["GPU_IS_LOST"]),
    "hang for 3 s": hang(3.0),
    "hang permanently": hang(),
    "each call takes 0.3 s": slow_calls(0.3),
    "each call takes 1.5 s": slow_calls(1.5),
    "driver gone for 2 s": errors(_CODES["DRIVER_NOT_LOADED"], 2.0),
    "driver gone permanently": errors(_CODES["DRIVER_NOT_LOADED"]),
    "driver gone for 2 s, counter from 0": restarted(silent_s=2.0),
    "no counter for 0.2 s": no_counter(0.2),
    "no counter for 6 s": no_counter(6.0),
    "no counter permanently": no_counter(),
    "counter begins again": restarted(),
    "counter begins again at 3000 J": restarted(3_000.0),
    "counter jumps +200 J": jump(200.0),
    "counter jumps +500 J every 4 s": jump(500.0, 4.0),
    "counter jumps +900 J": jump(900.0),
    "counter jumps +1500 J": jump(1_500.0),
    "counter jumps +1e6 J": jump(1e6),
    "counter falls by 1 mJ every 0.73 s": falls(0.001, 0.73),
    "counter falls by 5 J every 0.73 s": falls(5.0, 0.73),
    "counter falls by 100 J": falls(100.0),
    "counter 30 % slow": slope(0.7),
    "counter 30 % fast": slope(1.3),
    "counter at half the slope": slope(0.5),
    "counter halves": counter(lambda _gpu, mj: mj / 2),
    "counter / 1000": counter(lambda _gpu, mj: mj / 1_000),
    "counter x 1000": counter(lambda _gpu, mj: mj * 1_000),
    "counter slope / 1000": slope(0.001),
    "counter slope x 1000": slope(1_000.0),
    "counter frozen for 4 s": frozen(4.0),
    "counter frozen permanently": frozen(),
    "counter 2 s late": late(2.0),
    "counter reads 0 in 2 %": garbled(0.0, 0.02),
    "counter reads 0 in 30 %": garbled(0.0, 0.3),
    "counter reads 2^64-1 in 2 %": garbled(2**64 - 1, 0.02),
    "counter reads 2^64-1 in 50 %": garbled(2**64 - 1, 0.5),
    "counter with noise of 20 J": counter(lambda gpu, mj: mj + gpu.rng.uniform(-20e3, 20e3)),
    "power 0 W": power(lambda _gpu, _mw: 0),
    "power 65535 W": power(lambda _gpu, _mw: 65_535_000),
    "power 2^32-1 mW": power(lambda _gpu, _mw: 2**32 - 1),
    "power in W instead of mW": power(lambda _gpu, mw: mw / 1_000),
    "fields of type double": value_type(pynvml.NVML_VALUE_TYPE_DOUBLE),
    "fields of type 99": value_type(99),
}

WITHOUT_COUNTER: dict[str, Fault] = {
    "integral: power 0 W": power(lambda _gpu, _mw: 0),
    "integral: power 65535 W": power(lambda _gpu, _mw: 65_535_000),
    "integral: power 2^32-1 mW": power(lambda _gpu, _mw: 2**32 - 1),
    "integral: power in W instead of mW": power(lambda _gpu, mw: mw / 1_000),
    "integral: power stuck at 300 W": power(lambda _gpu, _mw: 300_000),
    "integral: power x 1000": power(lambda _gpu, mw: mw * 1_000),
    "integral: power 0 W for 0.5 s": power(lambda _gpu, _mw: 0, 0.5),
    "integral: lost for 3 s": errors(_CODES["GPU_IS_LOST"], 3.0),
    "integral: lost permanently": errors(_CODES["GPU_IS_LOST"]),
    "integral: hang for 3 s": hang(3.0),
    "integral: hang permanently": hang(),
    "integral: UNKNOWN in 10 % of calls": errors(_CODES["UNKNOWN"], share=0.1),
    "integral: NO_PERMISSION in 30 % of calls": errors(_CODES["NO_PERMISSION"], share=0.3),
    "integral: NOT_SUPPORTED for 0.1 s": errors(_CODES["NOT_SUPPORTED"], 0.1),
    "integral: each call takes 0.3 s": slow_calls(0.3),
    "integral: driver gone for 2 s": errors(_CODES["DRIVER_NOT_LOADED"], 2.0),
}
