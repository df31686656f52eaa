"""Servers killed with SIGKILL, and the samples they had acknowledged."""

import contextlib
import json
import sqlite3
import time
import urllib.parse
import urllib.request

import psutil
import pytest

from tests import servers
from tests.exporter.push.history_client import (
    LATE,
    PROMETHEUS,
    VICTORIA,
    add_samples,
    compare_with_server,
    count,
)
from tests.exporter.push.proxy import lines, proxy, server_samples
from wattline_exporter.push.client import PushTiming

ONCE = ["-dedup.minScrapeInterval=1ms"]
RECEIVES = ["--web.enable-remote-write-receiver"]


def kill(url):
    (process,) = [
        p for p in psutil.Process().children() if url[len("http://") :] in " ".join(p.cmdline())
    ]
    process.kill()
    process.wait(10)


@pytest.fixture
def started(tmp_path):
    """A server that can be killed and restarted on the same folder and port."""
    folder, port = tmp_path / "server", servers.free_port()
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def start(path=VICTORIA):
            if path == PROMETHEUS:
                context = servers.prometheus(folder, [], flags=RECEIVES, config=LATE, port=port)
            else:
                context = servers.victoria_metrics(folder, [], flags=ONCE, port=port)
            return stack.enter_context(context)

        yield start


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_victoria_metrics_killed_between_pushes_gets_lost_samples_again(
    started, sender, path, caplog
):
    """Killed twice and restarted before the next push. VictoriaMetrics accepts remote write as
    well.
    """
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + path)
    add_samples(pushed.history, now - 120, 60)
    counts_after_kill = []

    def killed_meanwhile():
        if len(counts_after_kill) < 2 and pushed.is_done():
            kill(url)
            started()
            counts_after_kill.append(count(server_samples(url, pushed.name, now)))
            add_samples(pushed.history, now - 90 + 30 * len(counts_after_kill), 30)
        return len(counts_after_kill) == 2 and pushed.is_done()

    pushed.push(until=killed_meanwhile)

    assert counts_after_kill == [0, 0]
    assert compare_with_server(url, pushed, now) == 600
    assert pushed.sample_counts() == {"accepted": 600, "refused": 0, "dropped": 0}
    assert "cannot push" not in caplog.text


def test_lost_samples_are_sent_again_although_the_disk_fails_at_the_rewind(started, sender):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + VICTORIA)
    add_samples(pushed.history, now - 120, 60)
    failures = []

    def failing_rewind():
        if len(failures) == 5:
            return rewind()
        failures.append("disk I/O error")
        raise sqlite3.OperationalError(failures[-1])

    def killed_meanwhile():
        if not failures and pushed.is_done():
            kill(url)
            started()
            pushed.history.backlog.rewind = failing_rewind
            add_samples(pushed.history, now - 60, 30)
        return len(failures) == 5 and pushed.is_done()

    rewind = pushed.history.backlog.rewind
    pushed.push(until=killed_meanwhile)

    assert compare_with_server(url, pushed, now) == 450
    assert pushed.sample_counts() == {"accepted": 450, "refused": 0, "dropped": 0}


def test_victoria_metrics_killed_while_exporter_is_down_gets_samples_again(started, sender):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + VICTORIA)
    add_samples(pushed.history, now - 60, 60)
    pushed.push()
    kill(url)
    started()
    pushed.restart()
    assert pushed.is_done()
    pushed.push(
        until=lambda: pushed.is_done() and count(server_samples(url, pushed.name, now)) == 300
    )

    assert compare_with_server(url, pushed, now) == 300
    assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_prometheus_killed_gets_no_sample_twice(started, sender):
    now = round(time.time(), 3)
    url = started(PROMETHEUS)
    pushed = sender(url + PROMETHEUS)
    add_samples(pushed.history, now - 60, 60)
    pushed.push()
    kill(url)
    started(PROMETHEUS)

    assert compare_with_server(url, pushed, now) == 300
    position = pushed.history.backlog.position()
    assert position.durable == position.done


def test_victoria_metrics_killed_gets_lost_samples_again(tmp_path, sender):
    """The samples of the last seconds are not on its disk."""
    now = round(time.time(), 3)
    (tmp_path / "server").mkdir()
    with (
        servers.victoria_metrics(tmp_path / "server", [], flags=ONCE) as victoria,
        proxy(victoria) as between,
    ):
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 120, 60)
        pushed.push()
        assert pushed.sample_counts()["accepted"] == 300
        kill(victoria)
        add_samples(pushed.history, now - 60, 60)
        pushed.push(until=lambda: len(between.faults_applied) > 2)
        with servers.victoria_metrics(tmp_path / "server", [], flags=ONCE) as restarted_server:
            between.server = restarted_server
            pushed.push()
            assert compare_with_server(restarted_server, pushed, now) == 600

    assert pushed.sample_counts() == {"accepted": 600, "refused": 0, "dropped": 0}


def joules(server, name, now):
    """Return the increase by PromQL over the last minute of the samples."""
    selector = f'wattline_gpu_energy_joules_total{{instance="{name}"}}'
    values = {}
    for function in ("increase", "delta", "count_over_time"):
        parameters = {
            "query": f"sum({function}({selector}[60s]))",
            "time": f"{now:.3f}",
            "nocache": "1",
        }
        with urllib.request.urlopen(
            f"{server}/api/v1/query?{urllib.parse.urlencode(parameters)}"
        ) as answer:
            values[function] = float(json.load(answer)["data"]["result"][0]["value"][1])
    return values


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_samples_sent_twice_do_not_double_joules(push_servers, sender, path):
    now = float(int(time.time()))
    with proxy(push_servers.of(path)) as between:
        pushed = sender(between.url + path)
        add_samples(pushed.history, now - 120, 121)
        between.faults = ["cut", "cut"]
        pushed.push()
    assert between.faults_applied.count("cut") == 2
    compare_with_server(push_servers.of(path), pushed, now + 1)

    # 300 W and 1 W for 60 s; newer servers exclude the window's first sample
    values = joules(push_servers.of(path), pushed.name, now)
    assert values["increase"] == pytest.approx(18_060, rel=1e-6)
    assert values["delta"] == pytest.approx(18_060, rel=1e-6)
    assert values["count_over_time"] in {120, 122}


def test_samples_kept_twice_by_the_server_do_not_double_joules(tmp_path, sender):
    now = float(int(time.time()))
    (tmp_path / "server").mkdir()
    with servers.victoria_metrics(tmp_path / "server", []) as victoria, proxy(victoria) as between:
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 120, 121)
        between.faults = ["cut"]
        pushed.push()
        server_samples(victoria, pushed.name, now)  # makes the samples visible
        values = joules(victoria, pushed.name, now)

    assert values["count_over_time"] >= 240
    assert values["increase"] == pytest.approx(18_060, rel=1e-6)
    assert values["delta"] == pytest.approx(18_060, rel=1e-6)


@pytest.mark.parametrize("closes", ["", "announced", "silently"])
def test_server_that_closes_connections_gets_few_samples_twice(
    push_servers, sender, closes, caplog
):
    """Closed connections are not an outage; on a kept connection nothing is sent twice."""
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        between.closes = closes
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 6_010, 6_010)
        pushed.push()

    assert compare_with_server(push_servers.victoria, pushed, now) == 30_050
    assert "cannot push" not in caplog.text
    # four batches; each at most three times more if the close is not announced
    assert (
        len(between.faults_applied) == 4
        if closes in {"", "announced"}
        else len(between.faults_applied) <= 16
    )


@pytest.mark.parametrize(("name", "status"), [("a-victoria-metrics", 503), ("", 502)])
def test_misleading_responses_do_not_repeat_samples(push_servers, sender, name, status):
    """A responding VictoriaMetrics has lost nothing; behind a proxy it may have, so samples are
    sent once more.
    """
    now = round(time.time(), 3)
    sent = []
    with proxy(push_servers.victoria) as between:
        between.name = name
        between.refuses = lambda body: sent.append(len(lines(body))) is not None
        between.faults = ["pass", *["pass", status] * 4]
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 6_010, 6_010)
        pushed.push()

    assert compare_with_server(push_servers.victoria, pushed, now) == 30_050
    assert between.faults_applied.count(status) == (2 if name else 4)
    assert sum(sent) == (30_050 if name else 50_050)


def test_short_connections_do_not_repeat_samples_without_end(push_servers, sender, caplog):
    """Connections through a proxy that closes idle ones. Fourteen pushes of five samples each."""
    caplog.set_level("INFO")
    now = round(time.time(), 3)
    sent, rounds = [], []
    with proxy(push_servers.victoria) as between:
        between.closes = "silently"
        between.refuses = lambda body: sent.append(len(lines(body))) is not None
        pushed = sender(between.url + VICTORIA)

        def one_more():
            if not pushed.is_done():
                return False
            rounds.append(len(rounds))
            if len(rounds) <= 14:
                add_samples(pushed.history, now - 20 + len(rounds), 1)
            return len(rounds) > 14

        pushed.push(until=one_more)

    # ten times all previous samples are sent again: 5, 10, 15 …
    assert sum(sent) == 70 + 275
    assert caplog.text.count("are closed within 30 s, by a proxy") == 1
    assert "cannot push" not in caplog.text
    assert compare_with_server(push_servers.victoria, pushed, now) == 70
    assert pushed.sample_counts() == {"accepted": 70, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("killed", [False, True])
def test_rare_pushes_check_the_server_in_between(started, sender, killed):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(
        url + VICTORIA, every_s=5.0, timing=PushTiming(first_backoff_s=0.02, flush_s=0.5)
    )
    add_samples(pushed.history, now - 60, 60)
    begun_s = []

    def proved():
        if not begun_s and pushed.is_done():
            begun_s.append(time.monotonic())
            if killed:
                kill(url)
                started()
        position = pushed.history.backlog.position()
        return begun_s and pushed.is_done() and position.durable == position.done

    pushed.push(until=proved)

    assert compare_with_server(url, pushed, now) == 300
    assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}
