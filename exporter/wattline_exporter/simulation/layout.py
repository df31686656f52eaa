"""Binary layout of the state file, little-endian; `tests/fakes/nvml/simulation.h` has the same C
structs.

    header | one record per GPU | points (t, watts) of one recorded power trace

A record ends with 16 process slots, 7 MIG instance slots and a ring of the last 32 segments: change
n is in slot n mod 32, and XID n in slot n mod 16 of another ring.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from wattline_exporter.simulation.card import (
    KEPT_SEGMENTS,
    KEPT_XIDS,
    MAX_INSTANCES,
    MAX_PROCESSES,
    Fault,
    Frozen,
    Product,
    Segment,
    SimulatedGpuState,
    SimulatedInstance,
    SimulatedProcess,
)
from wattline_exporter.simulation.loads import (
    Constant,
    Load,
    LoadKind,
    Ramp,
    Recording,
    Square,
    Trace,
)

MAGIC = b"WATTSIM2"
_ANY_VERSION = b"WATTSIM"

# magic | GPUs, sequence, driver loaded, call latency in µs, points, size of a record | driver
# loaded at, clock
_HEADER = struct.Struct("<8s6I2d16x")
_SEQUENCE = struct.Struct("<I")
_SEQUENCE_AT = 12
# name, UUID, PCI bus id | 11 floats of the product, 5 of the GPU, 4 of Frozen | memory, changes,
# ECC (2), XIDs so far | faults, index, architecture, compute capability (2), clocks (2), PCI
# device, of a data centre, MIG is on, locked clock | last XIDs
_CARD = struct.Struct("<96s96s32s20d5Q11I4x16I")
# PID, MIG instance | utilization | memory
_PROCESS = struct.Struct("<2IdQ")
# UUID, profile | memory | number, slices
_INSTANCE = struct.Struct("<48s16sQ2I")
# kind | begin, energy at the begin, limit, begin of the load, time capped until the begin |
# parameters of the load
_SEGMENT = struct.Struct("<I4x10d")
_POINT = struct.Struct("<2d")
_INSTANCES_AT = _CARD.size + MAX_PROCESSES * _PROCESS.size
_SEGMENTS_AT = _INSTANCES_AT + MAX_INSTANCES * _INSTANCE.size
_PRODUCT_FLOATS = (
    *("idle_w", "peak_w", "limit_min_w", "limit_max_w", "limit_default_w", "peak_flop_per_s"),
    *("sensor_period_s", "instant_window_s", "average_window_s", "counter_period_s", "noise_w"),
)
_GPU_FLOATS = (
    "sensor_phase_s",
    "counter_phase_s",
    "limit_w",
    "energy_at_load_j",
    "capped_at_load_s",
)
RECORD_SIZE = _SEGMENTS_AT + KEPT_SEGMENTS * _SEGMENT.size


@dataclass(frozen=True, slots=True)
class SimulationState:
    """State of all GPUs. `clock_s` is 0 while time runs, else the fixed time of all readers, for
    exact tests.
    """

    driver_loaded: bool
    driver_loaded_at_s: float
    call_latency_us: int
    clock_s: float
    gpus: tuple[SimulatedGpuState, ...]


def sequence(content: bytes) -> int:
    return int(_SEQUENCE.unpack_from(content, _SEQUENCE_AT)[0])


def pack_sequence(number: int) -> tuple[int, bytes]:
    """Return the offset and the bytes of the sequence number."""
    return _SEQUENCE_AT, _SEQUENCE.pack(number & 0xFFFFFFFF)


def gpu_offset(index: int) -> int:
    return _HEADER.size + index * RECORD_SIZE


def format_problem(content: bytes, size: int) -> str | None:
    """Return the reason for which a file of this size with this header cannot be read, or None."""
    if size < _HEADER.size or not content.startswith(_ANY_VERSION):
        return "its header is not that of a state file"
    magic, count, _, _, _, points, record_size, _, _ = _HEADER.unpack_from(content)
    if magic != MAGIC or record_size != RECORD_SIZE:
        return "it was written by another version of Wattline"
    if size != gpu_offset(count) + points * _POINT.size:
        return "it is truncated"
    return None


def counts(content: bytes) -> tuple[int, int]:
    """Return the numbers of GPUs and of points of the recording."""
    header = _HEADER.unpack_from(content)
    return int(header[1]), int(header[5])


def pack_header(state: SimulationState, points: int, number: int) -> bytes:
    """Return the header; `number` is the sequence number."""
    loaded = int(state.driver_loaded)
    latency_us = state.call_latency_us
    times = (state.driver_loaded_at_s, state.clock_s)
    return _HEADER.pack(
        MAGIC, len(state.gpus), number, loaded, latency_us, points, RECORD_SIZE, *times
    )


def unpack_state(content: bytes, recording: Recording | None) -> SimulationState:
    _, count, _, loaded, latency_us, _, _, loaded_at_s, clock_s = _HEADER.unpack_from(content)
    gpus = tuple(_unpack_gpu(content, gpu_offset(i), recording) for i in range(count))
    return SimulationState(bool(loaded), loaded_at_s, latency_us, clock_s, gpus)


def pack_recording(recording: Recording) -> bytes:
    return b"".join(map(_POINT.pack, recording.times_s, recording.watts))


def unpack_recording(content: bytes) -> Recording:
    times_s, watts = zip(*_POINT.iter_unpack(content), strict=True)
    return Recording(times_s, watts)


def pack_gpu(gpu: SimulatedGpuState) -> bytes:
    record = bytearray(RECORD_SIZE)
    make = gpu.product
    xids = [0] * KEPT_XIDS
    for i, xid in enumerate(gpu.xids, start=gpu.xid_count - len(gpu.xids)):
        xids[i % KEPT_XIDS] = xid
    _CARD.pack_into(
        record,
        0,
        *(text.encode() for text in (make.name, gpu.uuid, gpu.pci_bus_id)),
        *(getattr(make, name) for name in _PRODUCT_FLOATS),
        *(getattr(gpu, name) for name in _GPU_FLOATS),
        *astuple(gpu.frozen or Frozen(0.0, 0.0, 0.0, 0.0)),
        *(make.memory_bytes, gpu.changes, gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.xid_count),
        *(gpu.faults, gpu.index, make.architecture, *make.compute_capability),
        *(make.sm_clock_mhz, make.memory_clock_mhz, make.pci_device_id, make.is_of_data_centre),
        *(gpu.instances is not None, gpu.locked_clock_mhz, *xids),
    )
    for i, process in enumerate(gpu.processes):
        slot = (process.pid, process.instance, process.utilization, process.memory_bytes)
        _PROCESS.pack_into(record, _CARD.size + i * _PROCESS.size, *slot)
    for i, instance in enumerate(gpu.instances or ()):
        texts = (instance.uuid.encode(), instance.profile.encode())
        slot_at = _INSTANCES_AT + i * _INSTANCE.size
        _INSTANCE.pack_into(
            record, slot_at, *texts, instance.memory_bytes, instance.number, instance.slices
        )
    for i, segment in enumerate(gpu.segments, start=gpu.changes - len(gpu.segments)):
        _pack_segment(record, _SEGMENTS_AT + i % KEPT_SEGMENTS * _SEGMENT.size, segment)
    return bytes(record)


def _pack_segment(record: bytearray, at: int, segment: Segment) -> None:
    start = (
        segment.begin_s,
        segment.begin_j,
        segment.limit_w,
        segment.load_begin_s,
        segment.begin_capped_s,
    )
    parameters = _parameters(segment.load)
    _SEGMENT.pack_into(
        record, at, segment.load.kind, *start, *parameters, *(5 - len(parameters)) * (0.0,)
    )


def _parameters(load: Load) -> tuple[float, ...]:
    match load:
        case Constant(w):
            return (w,)
        case Square(low_w, high_w, period_s, duty, phase_s):
            return (low_w, high_w, period_s, duty, phase_s)
        case Ramp(from_w, to_w, duration_s):
            return (from_w, to_w, duration_s)
        case Trace(_, start_s):
            return (start_s,)


def _unpack_gpu(content: bytes, offset: int, recording: Recording | None) -> SimulatedGpuState:
    name, uuid, pci_bus_id, *numbers = _CARD.unpack_from(content, offset)
    product_floats = numbers[:11]
    gpu_floats = numbers[11:16]
    frozen = numbers[16:20]
    memory_bytes, changes, corrected, uncorrected, xid_count = numbers[20:25]
    (
        faults,
        index,
        architecture,
        major,
        minor,
        sm_mhz,
        memory_mhz,
        pci_device_id,
        of_data_centre,
        mig,
        locked_mhz,
    ) = numbers[25:36]
    product = Product(
        name=_text(name),
        memory_bytes=memory_bytes,
        architecture=architecture,
        compute_capability=(major, minor),
        sm_clock_mhz=sm_mhz,
        memory_clock_mhz=memory_mhz,
        pci_device_id=pci_device_id,
        is_of_data_centre=bool(of_data_centre),
        **dict(zip(_PRODUCT_FLOATS, product_floats, strict=True)),
    )
    kept = range(max(0, changes - KEPT_SEGMENTS), changes)
    segments_at = (offset + _SEGMENTS_AT + i % KEPT_SEGMENTS * _SEGMENT.size for i in kept)
    return SimulatedGpuState(
        index=index,
        uuid=_text(uuid),
        pci_bus_id=_text(pci_bus_id),
        product=product,
        faults=Fault(faults),
        frozen=Frozen(*frozen) if frozen[0] > 0 else None,
        processes=tuple(_unpack_processes(content, offset + _CARD.size)),
        segments=tuple(_unpack_segment(content, at, recording) for at in segments_at),
        changes=changes,
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        xids=tuple(
            numbers[36 + i % KEPT_XIDS] for i in range(max(0, xid_count - KEPT_XIDS), xid_count)
        ),
        xid_count=xid_count,
        instances=tuple(_unpack_instances(content, offset + _INSTANCES_AT)) if mig else None,
        locked_clock_mhz=locked_mhz,
        **dict(zip(_GPU_FLOATS, gpu_floats, strict=True)),
    )


def _unpack_processes(content: bytes, at: int) -> Iterator[SimulatedProcess]:
    for pid, instance, utilization, memory_bytes in _PROCESS.iter_unpack(
        content[at : at + MAX_PROCESSES * _PROCESS.size]
    ):
        if pid:
            yield SimulatedProcess(pid, utilization, memory_bytes, instance)


def _unpack_instances(content: bytes, at: int) -> Iterator[SimulatedInstance]:
    slots = _INSTANCE.iter_unpack(content[at : at + MAX_INSTANCES * _INSTANCE.size])
    for uuid, profile, memory_bytes, number, slices in slots:
        if number:
            yield SimulatedInstance(number, _text(uuid), _text(profile), slices, memory_bytes)


def _unpack_segment(content: bytes, at: int, recording: Recording | None) -> Segment:
    kind, begin_s, begin_j, limit_w, load_begin_s, begin_capped_s, *parameters = (
        _SEGMENT.unpack_from(content, at)
    )
    load: Load
    match LoadKind(kind):
        case LoadKind.CONSTANT:
            load = Constant(parameters[0])
        case LoadKind.SQUARE:
            load = Square(*parameters)
        case LoadKind.RAMP:
            load = Ramp(*parameters[:3])
        case LoadKind.TRACE:
            assert recording is not None  # a trace is set only where the file has a recording
            load = Trace(recording, parameters[0])
    return Segment(begin_s, begin_j, limit_w, load_begin_s, load, begin_capped_s)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode()
