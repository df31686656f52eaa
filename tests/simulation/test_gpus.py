"""Simulated GPUs in virtual time, polled without an exporter."""

import random

from tests.laboratory.faults import hang
from tests.simulation.gpus import MAX_CALL_S, SimulatedGpu, Worker
from tests.simulation.virtual_time import VirtualTime


class Pipe:
    """Reader of the worker's lines."""

    def __init__(self):
        self.lines = []

    def connection_made(self, _transport):
        """Do nothing."""

    def pipe_data_received(self, _fd, data):
        self.lines.append(data)


def test_gpu_answer_after_a_hang_ends_its_silence():
    virtual = VirtualTime(random.Random(1), 1_000.0)
    pipe = Pipe()
    with virtual.installed():
        gpu = SimulatedGpu(virtual, 0, has_counter=False)
        Worker(virtual, [gpu], pipe, lambda received, *args: received(*args))
        while virtual.s < 1_003.0:
            virtual.run_next()
        gpu.start_fault(hang(), 0.1)
        while gpu.silent_since_s is None:
            virtual.run_next()
        end_s = virtual.s + MAX_CALL_S
        while virtual.s < end_s - 0.1:
            virtual.run_next()
        pipe.lines.clear()
        while not pipe.lines:
            virtual.run_next()

    assert virtual.s >= end_s
    assert gpu.silent_since_s is None
