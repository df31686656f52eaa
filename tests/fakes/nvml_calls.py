"""Program that calls pynvml for each line of stdin, JSON `[function, GPU or null, *arguments]`, and
prints JSON.

A GPU is given by its index, or as `[index, index of the MIG instance]`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


def call(nvml: Any, function: str, gpu: int | list[int] | None = None, *arguments: Any) -> Any:
    """Return the result as plain data, or `{"error": 3}` where the function raises NVMLError."""
    try:
        handle = () if gpu is None else (_handle(nvml, gpu),)
        return _plain(getattr(nvml, function)(*handle, *arguments))
    except nvml.NVMLError as error:
        return {"error": error.value}


def _handle(nvml: Any, gpu: int | list[int]) -> Any:
    if isinstance(gpu, int):
        return nvml.nvmlDeviceGetHandleByIndex(gpu)
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(nvml.nvmlDeviceGetHandleByIndex(gpu[0]), gpu[1])


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Array | list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "nvmlReturn"):
        return _plain_field(value)
    if isinstance(value, ctypes.Structure):
        return {name: getattr(value, name) for name, *_ in value._fields_}
    return getattr(value, "__dict__", value)


def _plain_field(field: Any) -> dict[str, int]:
    """Return a field without its timestamp, and without a value where it has none."""
    if field.nvmlReturn:
        return {"field": field.fieldId, "error": field.nvmlReturn}
    return {"field": field.fieldId, "type": field.valueType, "value": field.value.ullVal}


if __name__ == "__main__":
    import pynvml

    for line in sys.stdin:
        print(json.dumps(call(pynvml, *json.loads(line))), flush=True)
