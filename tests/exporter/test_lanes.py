"""Lanes on GPUs that answer, hang and fail as the test says; what they send is read from the outbox."""

import json
import math
import subprocess
import sys
import threading
import time
from itertools import chain, pairwise

import pynvml
import pytest

from exporter.contract.metrics import GPU_FAN, GPU_TEMPERATURE
from exporter.model import Device, Gpu, GpuProcess, Poll, Reading, boottime
from exporter.nvml_worker.polling_threads import MOST_IN_A_LANE, Lanes, Visit
from exporter.nvml_worker.protocol import EXIT_BEHIND, LONGEST_LINE, MOST_POLLS, Orders, Outbox

FAST = 0.02


class Card:
    """Stands where an attached GPU stands."""

    def __init__(self, index):
        self.info = Gpu(str(index), f"GPU-{index}", "test", "", "", "")
        self.answers = threading.Event()
        self.answers.set()
        self.in_the_driver = threading.Event()
        self.fails_with = None
        self.shown = [Reading(GPU_TEMPERATURE, (str(index), self.info.uuid, "gpu"), 40.0)]
        self.has_counter = True

    def poll(self):
        now = boottime()
        self.in_the_driver.set()
        self.answers.wait()
        if self.fails_with:
            raise pynvml.NVMLError(self.fails_with)
        return Poll(Device("gpu", self.info.uuid), now, boottime(), 1.0 if self.has_counter else None, 100.0)

    def readings(self):
        yield from self.shown

    def processes(self):
        return [GpuProcess(7, 100, 0.5)]


class Box(Outbox):
    """Keeps what would be sent."""

    def __init__(self, orders):
        super().__init__(orders)
        self.sent = []

    def put(self, kind, message):
        self.sent.append((boottime(), kind, message))

    def of(self, kind, since_s=0.0):
        return [message for at_s, sent, message in list(self.sent) if sent == kind and at_s >= since_s]

    def polls_of(self, card, since_s=0.0):
        return sum(message[0] == card.info.uuid for message in self.of("polls", since_s))


class Node:
    def __init__(self, cards, period_s=FAST):
        self.orders = Orders(period_s=period_s)
        self.box = Box(self.orders)
        self.lost = []
        self.lanes = Lanes(self.orders, self.box, lost=self.lost.append)
        self.cards = cards
        self.visits = []
        for index, card in enumerate(cards):
            self.visits.append(Visit(index))
            self.visits[-1].begin(card)
            self.lanes.add(self.visits[-1])

    def until(self, holds, relieve=True):
        give_up = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < give_up
            if relieve:
                self.lanes.relieve()
            time.sleep(0.01)


@pytest.fixture
def cards():
    made = [Card(i) for i in range(3)]
    yield made
    for card in made:
        card.fails_with = pynvml.NVML_ERROR_GPU_IS_LOST  # so that its lane ends
        card.answers.set()


def test_all_gpus_share_a_lane_while_they_answer(cards):
    node = Node(cards)
    node.until(lambda: all(node.box.polls_of(card) >= 10 for card in cards))

    assert len(node.lanes._lanes) == 1


def test_one_that_hangs_is_left_behind_and_the_others_go_on(cards):
    node = Node(cards)
    node.until(lambda: node.box.polls_of(cards[2]) > 2)
    cards[1].answers.clear()
    cards[1].in_the_driver.clear()
    cards[1].in_the_driver.wait()
    before = [node.box.polls_of(card) for card in cards]
    node.until(lambda: node.box.polls_of(cards[0]) > before[0] + 20 and node.box.polls_of(cards[2]) > before[2] + 20)

    assert node.box.polls_of(cards[1]) == before[1]
    cards[1].answers.set()
    node.until(lambda: node.box.polls_of(cards[1]) > before[1] + 5)
    since_s = boottime()
    node.until(lambda: node.box.polls_of(cards[0], since_s) > 20)
    assert node.box.polls_of(cards[0], since_s) == pytest.approx(node.box.polls_of(cards[1], since_s), abs=6)
    assert node.lost == []


def test_all_but_one_may_hang(cards):
    node = Node(cards)
    for card in cards[:2]:
        node.until(lambda: node.box.polls_of(cards[2]) > 2)
        card.answers.clear()
        card.in_the_driver.clear()
        node.until(card.in_the_driver.is_set)
    since_s = boottime()
    node.until(lambda: node.box.polls_of(cards[2], since_s) > 20)


def test_one_that_fails_is_told_and_given_back(cards):
    node = Node(cards)
    node.until(lambda: node.box.polls_of(cards[1]) > 2)
    cards[1].fails_with = pynvml.NVML_ERROR_GPU_IS_LOST
    node.until(lambda: node.lost)

    assert node.lost == [node.visits[1]]
    assert node.box.of("down") == [[1, "GPU is lost"]]
    cards[1].fails_with = None
    node.visits[1].begin(cards[1])
    since_s = boottime()
    node.lanes.add(node.visits[1])
    node.until(lambda: node.box.polls_of(cards[1], since_s) > 2)


def test_a_lane_has_a_few_gpus_and_the_next_ones_get_another():
    many = [Card(i) for i in range(2 * MOST_IN_A_LANE + 1)]
    node = Node(many)
    node.until(lambda: all(node.box.polls_of(card) > 2 for card in many))

    assert len(node.lanes._lanes) == 3
    for card in many:
        card.fails_with = pynvml.NVML_ERROR_GPU_IS_LOST
    node.until(lambda: len(node.lost) == len(many))
    node.until(lambda: not node.lanes._lanes)


def test_of_readings_only_what_changed_is_sent_and_what_is_gone_is_told(cards):
    card = cards[0]
    fan = Reading(GPU_FAN, ("0", "GPU-0"), 0.3)
    temperature = card.shown[0]
    card.shown = [temperature, fan]
    node = Node([card], period_s=1.0)
    visit = Visit(0)
    visit.begin(card)
    for shown in ([temperature, fan], [temperature, fan._replace(value=0.4)], [temperature]):
        card.shown, visit._readings_s = shown, -math.inf  # due again
        visit.read(node.box, processes_every_s=1e9)

    name, labels = GPU_FAN.name, ("0", "GPU-0")
    sent = [message for message in node.box.of("readings") if message[0] == "GPU-0"][-2:]
    assert sent == [["GPU-0", [[name, labels, 0.4]], []], ["GPU-0", [], [[name, labels]]]]
    assert node.box.of("processes")[0] == ["GPU-0", [[7, 100, 0.5, ""]]]


def test_processes_may_be_asked_for_more_often_than_readings(cards):
    node = Node(cards[:1])
    node.orders.processes_every_s = 0.1
    node.until(lambda: len(node.box.of("processes")) >= 10)

    assert len(node.box.of("processes")) >= 3 * len(node.box.of("readings"))


def test_a_gpu_without_a_counter_is_polled_fast_also_while_no_run_is_on(cards):
    cards[0].has_counter = False
    node = Node(cards[:1], period_s=30.0)
    node.until(lambda: node.box.polls_of(cards[0]) > 10)


def test_calls_that_take_longer_than_the_period_lower_the_rate_and_nothing_piles_up(cards):
    node = Node(cards)
    slow = cards[0]
    quick_poll = slow.poll
    slow.poll = lambda: (time.sleep(3 * FAST), quick_poll())[1]
    node.until(lambda: node.box.polls_of(slow) > 10)
    polls = [message[1:3] for message in node.box.of("polls") if message[0] == slow.info.uuid]

    assert all(later[0] >= earlier[1] for earlier, later in pairwise(polls))


OUTBOX = """
from exporter.nvml_worker.protocol import MOST_OTHERS, MOST_POLLS, Orders, Outbox
outbox = Outbox(Orders())
"""


def sent_by(source):
    """What a process of that source code sends while nobody reads, as lines, and its exit code."""
    ended = subprocess.run([sys.executable, "-c", OUTBOX + source], stdout=subprocess.PIPE, check=False)
    return ended.stdout.splitlines(), ended.returncode


def test_of_polls_that_nobody_takes_the_oldest_are_dropped_and_the_others_come_in_lines_that_are_not_too_long():
    lines, code = sent_by("""
for n in range(3 * MOST_POLLS):
    if n == 2 * MOST_POLLS:
        outbox.put("gpu", "new")
    outbox.put("polls", [n, "x" * 100])
outbox.flush()
outbox.flush()
""")
    messages = [json.loads(line) for line in lines]
    numbers = [number for number, _ in chain.from_iterable(message.get("polls", []) for message in messages)]

    assert code == 0
    assert numbers == list(range(numbers[0], 3 * MOST_POLLS))
    assert MOST_POLLS / 2 <= len(numbers) <= MOST_POLLS
    assert len(lines) > 1
    assert max(map(len, lines)) <= LONGEST_LINE
    assert [message["gpu"] for message in messages if "gpu" in message] == [["new"]]


def test_a_gpu_is_told_of_before_its_polls_also_where_they_go_in_several_lines():
    lines, _ = sent_by("""
for n in range(2000):
    outbox.put("polls", ["old", "x" * 300])
outbox.put("gpu", "new")
outbox.put("polls", ["new", ""])
outbox.flush()
""")
    messages = [json.loads(line) for line in lines]
    told = next(n for n, message in enumerate(messages) if "gpu" in message)

    assert len(messages) > 1
    assert not [poll for message in messages[:told] for poll in message["polls"] if poll[0] == "new"]
    assert ["new", ""] in messages[-1]["polls"]


def test_readings_that_nobody_takes_and_that_cannot_be_dropped_end_the_process():
    assert sent_by("""
for n in range(MOST_OTHERS + 1):
    outbox.put("readings", ["GPU-0", [], []])
print("went on")
""") == ([], EXIT_BEHIND)


def test_a_message_that_is_longer_than_a_line_goes_as_one():
    lines, _ = sent_by("""
outbox.put("processes", "x" * 300_000)
outbox.put("processes", "y")
outbox.flush()
""")

    assert [len(json.loads(line)["processes"][0]) for line in lines] == [300_000, 1]
