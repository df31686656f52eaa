"""Round trips of the messages between worker and daemon."""

from wattline.contract.metrics import GPU_FAN, GPU_TEMPERATURE
from wattline_exporter.sensors.nvml.wire import (
    decode_message,
    decode_order,
    encode_items,
    encode_order,
)
from wattline_exporter.sensors.readings import (
    Device,
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    GpuProcess,
    GpuProcessList,
    Poll,
    Reading,
    ReadingChanges,
    SamplingOrder,
    WorkerMessage,
    XidError,
    XidReporting,
)

POLL = Poll(Device("gpu", "GPU-0"), 1.5, 1.501, 300.0, 250.5, None)
CHANGES = ReadingChanges(
    "GPU-0", (Reading(GPU_FAN, ("0", "GPU-0"), 0.3),), ((GPU_TEMPERATURE.name, ("0", "GPU-0")),)
)
MESSAGE = WorkerMessage(
    gpu_counts=(GpuCount(2),),
    gpus=(GpuInfo("0", "GPU-0", "H200", "Hopper", "0000:18:00.0", "580.95"),),
    polls=(POLL, POLL._replace(before_s=2.0, after_s=2.1)),
    reading_changes=(CHANGES,),
    process_lists=(
        GpuProcessList(
            "GPU-0", (GpuProcess(7, 100, 0.5), GpuProcess(8, None, None, "MIG-1")), 1.75
        ),
    ),
    xid_reporting=(XidReporting("GPU-0"),),
    xid_errors=(XidError("GPU-0", 79),),
    gpu_failures=(GpuFailure(1, "GPU is lost"),),
    driver_gone=(DriverGone("Driver Not Loaded", unloaded=True),),
)
ITEMS = [
    POLL,
    *MESSAGE.gpu_counts,
    *MESSAGE.gpus,
    CHANGES,
    *MESSAGE.process_lists,
    *MESSAGE.xid_reporting,
    *MESSAGE.xid_errors,
    *MESSAGE.gpu_failures,
    *MESSAGE.driver_gone,
    MESSAGE.polls[1],
]


def test_message_with_every_item_survives_encoding():
    assert decode_message(encode_items(ITEMS)) == MESSAGE


def test_message_empty_line_of_items_decodes_to_nothing():
    assert decode_message(encode_items([])) == WorkerMessage()


def test_message_extended_keeps_items_of_both_in_order():
    first, second = decode_message(encode_items([POLL])), decode_message(encode_items(ITEMS))

    assert first.extended(second).polls == (POLL, *MESSAGE.polls)
    assert first.extended(second).gpus == MESSAGE.gpus


def test_order_survives_encoding():
    order = SamplingOrder(period_s=0.047, burst_s=0.3, processes_every_s=1.0)

    assert decode_order(encode_order(order).decode()) == order
