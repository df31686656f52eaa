"""Exact times of exits, of real processes."""

import asyncio
import errno
import subprocess
import sys

from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process
from wattline_exporter.sensors.readings import boottime


def start():
    """Start a process that exits once its stdin ends, and prints when."""
    script = "import sys, time; sys.stdin.read(); print(time.clock_gettime(time.CLOCK_BOOTTIME))"
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


async def wait_for(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # a process exits
            await asyncio.sleep(0.01)


def test_exit_time_lies_between_the_last_line_and_the_wait():
    async def watched():
        exits = ProcessExits()
        program = start()
        process = find_process(program.pid)
        exits.watch({process})
        assert exits.exited_s == {}
        printed_s = float(program.communicate()[0])
        await wait_for(lambda: process in exits.exited_s)
        assert printed_s <= exits.exited_s[process] <= boottime()
        exits.watch({process})
        assert process in exits.exited_s
        exits.watch(set())
        assert exits.exited_s == {}

    asyncio.run(watched())


def test_process_with_the_pid_of_another_one_has_exited():
    async def watched():
        exits = ProcessExits(clock=lambda: 12.0)
        program = start()
        process = find_process(program.pid)
        earlier = ProcessKey(process.pid, process.started_s - 5.0)
        exits.watch({earlier, process})
        assert exits.exited_s == {earlier: 12.0}
        exits.close()
        program.communicate()

    asyncio.run(watched())


def test_exit_without_pidfds_is_found_by_the_next_call():
    def no_pidfd(_):
        raise OSError(errno.ENOSYS, "not implemented")

    async def watched():
        exits = ProcessExits(open_pidfd=no_pidfd)
        program = start()
        process = find_process(program.pid)
        exits.watch({process})
        assert exits.exited_s == {}
        printed_s = float(program.communicate()[0])
        exits.watch({process})
        assert printed_s <= exits.exited_s[process] <= boottime()

    asyncio.run(watched())
