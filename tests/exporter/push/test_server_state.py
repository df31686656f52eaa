"""Servers killed with SIGKILL, and the samples they had acknowledged."""

import contextlib
import json
import time
import urllib.parse
import urllib.request

import psutil
import pytest

from exporter.push.client import PushTiming
from tests import servers
from tests.exporter.push.node import LATE, PROMETHEUS, VICTORIA, agrees, count, remember
from tests.exporter.push.proxy import lines, on_server, proxy

ONCE = ["-dedup.minScrapeInterval=1ms"]
RECEIVES = ["--web.enable-remote-write-receiver"]


def kill(url):
    (process,) = [p for p in psutil.Process().children() if url[len("http://") :] in " ".join(p.cmdline())]
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
                made = servers.prometheus(folder, [], flags=RECEIVES, config=LATE, port=port)
            else:
                made = servers.victoria_metrics(folder, [], flags=ONCE, port=port)
            return stack.enter_context(made)

        yield start


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_victoria_metrics_killed_between_pushes_gets_lost_samples_again(started, sender, path, caplog):
    """Killed twice and restarted before the next push. VictoriaMetrics accepts remote write as well."""
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + path)
    remember(pushed.history, now - 120, 60)
    forgotten = []

    def killed_meanwhile():
        if len(forgotten) < 2 and pushed.is_done():
            kill(url)
            started()
            forgotten.append(count(on_server(url, pushed.name, now)))
            remember(pushed.history, now - 90 + 30 * len(forgotten), 30)
        return len(forgotten) == 2 and pushed.is_done()

    pushed.push(until=killed_meanwhile)

    assert forgotten == [0, 0]
    assert agrees(url, pushed, now) == 600
    assert pushed.counted() == {"accepted": 600, "refused": 0, "dropped": 0}
    assert "cannot push" not in caplog.text


def test_victoria_metrics_killed_while_exporter_is_down_gets_samples_again(started, sender):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + VICTORIA)
    remember(pushed.history, now - 60, 60)
    pushed.push()
    kill(url)
    started()
    pushed.again()
    assert pushed.is_done()
    pushed.push(until=lambda: pushed.is_done() and count(on_server(url, pushed.name, now)) == 300)

    assert agrees(url, pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_prometheus_killed_gets_no_sample_twice(started, sender):
    now = round(time.time(), 3)
    url = started(PROMETHEUS)
    pushed = sender(url + PROMETHEUS)
    remember(pushed.history, now - 60, 60)
    pushed.push()
    kill(url)
    started(PROMETHEUS)

    assert agrees(url, pushed, now) == 300
    position = pushed.history.backlog.position()
    assert position.durable == position.done


def test_victoria_metrics_killed_gets_lost_samples_again(tmp_path, sender):
    """The samples of the last seconds are not on its disk."""
    now = round(time.time(), 3)
    (tmp_path / "server").mkdir()
    with servers.victoria_metrics(tmp_path / "server", [], flags=ONCE) as victoria, proxy(victoria) as between:
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 120, 60)
        pushed.push()
        assert pushed.counted()["accepted"] == 300
        kill(victoria)
        remember(pushed.history, now - 60, 60)
        pushed.push(until=lambda: len(between.seen) > 2)
        with servers.victoria_metrics(tmp_path / "server", [], flags=ONCE) as started_anew:
            between.server = started_anew
            pushed.push()
            assert agrees(started_anew, pushed, now) == 600

    assert pushed.counted() == {"accepted": 600, "refused": 0, "dropped": 0}


def joules(server, name, now):
    """Return the increase by PromQL over the last minute of the samples."""
    selector = f'wattline_gpu_energy_joules_total{{instance="{name}"}}'
    found = {}
    for function in ("increase", "delta", "count_over_time"):
        asked = {"query": f"sum({function}({selector}[60s]))", "time": f"{now:.3f}", "nocache": "1"}
        with urllib.request.urlopen(f"{server}/api/v1/query?{urllib.parse.urlencode(asked)}") as answer:
            found[function] = float(json.load(answer)["data"]["result"][0]["value"][1])
    return found


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_samples_sent_twice_do_not_double_joules(both, sender, path):
    now = float(int(time.time()))
    with proxy(both.of(path)) as between:
        pushed = sender(between.url + path)
        remember(pushed.history, now - 120, 121)
        between.faults = ["cut", "cut"]
        pushed.push()
    assert between.seen.count("cut") == 2
    agrees(both.of(path), pushed, now + 1)

    # 300 W and 1 W for 60 s; newer servers exclude the window's first sample
    found = joules(both.of(path), pushed.name, now)
    assert found["increase"] == pytest.approx(18_060, rel=1e-6)
    assert found["delta"] == pytest.approx(18_060, rel=1e-6)
    assert found["count_over_time"] in {120, 122}


def test_samples_kept_twice_by_the_server_do_not_double_joules(tmp_path, sender):
    now = float(int(time.time()))
    (tmp_path / "server").mkdir()
    with servers.victoria_metrics(tmp_path / "server", []) as victoria, proxy(victoria) as between:
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 120, 121)
        between.faults = ["cut"]
        pushed.push()
        on_server(victoria, pushed.name, now)  # makes the samples visible
        found = joules(victoria, pushed.name, now)

    assert found["count_over_time"] >= 240
    assert found["increase"] == pytest.approx(18_060, rel=1e-6)
    assert found["delta"] == pytest.approx(18_060, rel=1e-6)


@pytest.mark.parametrize("closes", ["", "said", "silently"])
def test_server_that_closes_connections_gets_few_samples_twice(both, sender, closes, caplog):
    """Closed connections are not an outage; on a kept connection nothing is sent twice."""
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        between.closes = closes
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 6_010, 6_010)
        pushed.push()

    assert agrees(both.victoria, pushed, now) == 30_050
    assert "cannot push" not in caplog.text
    # four batches; each at most three times more if the close is not announced
    assert len(between.seen) == 4 if closes in {"", "said"} else len(between.seen) <= 16


@pytest.mark.parametrize(("name", "status"), [("a-victoria-metrics", 503), ("", 502)])
def test_misleading_responses_do_not_repeat_samples(both, sender, name, status):
    """A responding VictoriaMetrics has lost nothing; behind a proxy it may have, so samples are sent once more."""
    now = round(time.time(), 3)
    sent = []
    with proxy(both.victoria) as between:
        between.name = name
        between.refuses = lambda body: sent.append(len(lines(body))) is not None
        between.faults = ["pass", *["pass", status] * 4]
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 6_010, 6_010)
        pushed.push()

    assert agrees(both.victoria, pushed, now) == 30_050
    assert between.seen.count(status) == (2 if name else 4)
    assert sum(sent) == (30_050 if name else 50_050)


def test_short_connections_do_not_repeat_samples_without_end(both, sender, caplog):
    """Connections through a proxy that closes idle ones. Fourteen pushes of five samples each."""
    caplog.set_level("INFO")
    now = round(time.time(), 3)
    sent, rounds = [], []
    with proxy(both.victoria) as between:
        between.closes = "silently"
        between.refuses = lambda body: sent.append(len(lines(body))) is not None
        pushed = sender(between.url + VICTORIA)

        def one_more():
            if not pushed.is_done():
                return False
            rounds.append(len(rounds))
            if len(rounds) <= 14:
                remember(pushed.history, now - 20 + len(rounds), 1)
            return len(rounds) > 14

        pushed.push(until=one_more)

    # ten times all previous samples are sent again: 5, 10, 15 …
    assert sum(sent) == 70 + 275
    assert caplog.text.count("are closed within 30 s, by a proxy") == 1
    assert "cannot push" not in caplog.text
    assert agrees(both.victoria, pushed, now) == 70
    assert pushed.counted() == {"accepted": 70, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("killed", [False, True])
def test_rare_pushes_check_the_server_in_between(started, sender, killed):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + VICTORIA, every_s=5.0, timing=PushTiming(first_backoff_s=0.02, flush_s=0.5))
    remember(pushed.history, now - 60, 60)
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

    assert agrees(url, pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}
