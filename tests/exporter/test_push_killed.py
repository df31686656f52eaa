"""A server that is killed with SIGKILL, and what it had acknowledged."""

import contextlib
import json
import time
import urllib.parse
import urllib.request

import psutil
import pytest

from exporter.push.client import Pace
from tests import servers
from tests.exporter.push_node import LATE, PROMETHEUS, VICTORIA, agrees, count, remember
from tests.exporter.push_proxy import lines, on_server, proxy

ONCE = ["-dedup.minScrapeInterval=1ms"]
RECEIVES = ["--web.enable-remote-write-receiver"]


def kill(url):
    (process,) = [p for p in psutil.Process().children() if url[len("http://") :] in " ".join(p.cmdline())]
    process.kill()
    process.wait(10)


@pytest.fixture
def started(tmp_path):
    """A server that can be killed, and started again on its own folder at its own port."""
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
def test_what_a_victoria_metrics_forgot_that_was_killed_between_two_pushes_is_sent_again(started, sender, path, caplog):
    """Twice, and nobody sees it away: it is back before the next push. VictoriaMetrics takes remote write as well."""
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


def test_what_it_forgot_while_the_exporter_was_away_as_well_is_sent_again(started, sender):
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


def test_a_prometheus_that_is_killed_forgets_nothing_and_gets_nothing_twice(started, sender):
    now = round(time.time(), 3)
    url = started(PROMETHEUS)
    pushed = sender(url + PROMETHEUS)
    remember(pushed.history, now - 60, 60)
    pushed.push()
    kill(url)
    started(PROMETHEUS)

    assert agrees(url, pushed, now) == 300
    position = pushed.history.backlog.position()
    assert position.sure == position.done


def test_what_a_victoria_metrics_lost_that_was_killed_is_sent_again(tmp_path, sender):
    """It has nothing on disk of what it took in the last seconds."""
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
    """By PromQL, over the last minute of the test's samples."""
    selector = f'wattline_gpu_energy_joules_total{{instance="{name}"}}'
    found = {}
    for function in ("increase", "delta", "count_over_time"):
        asked = {"query": f"sum({function}({selector}[60s]))", "time": f"{now:.3f}", "nocache": "1"}
        with urllib.request.urlopen(f"{server}/api/v1/query?{urllib.parse.urlencode(asked)}") as answer:
            found[function] = float(json.load(answer)["data"]["result"][0]["value"][1])
    return found


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_joules_of_samples_that_were_sent_twice_are_not_doubled(both, sender, path):
    now = float(int(time.time()))
    with proxy(both.of(path)) as between:
        pushed = sender(between.url + path)
        remember(pushed.history, now - 120, 121)
        between.faults = ["cut", "cut"]
        pushed.push()
    assert between.seen.count("cut") == 2
    agrees(both.of(path), pushed, now + 1)

    # 300 W and 1 W for 60 s; the window's first sample is left out of it by newer servers
    found = joules(both.of(path), pushed.name, now)
    assert found["increase"] == pytest.approx(18_060, rel=1e-6)
    assert found["delta"] == pytest.approx(18_060, rel=1e-6)
    assert found["count_over_time"] in {120, 122}


def test_joules_are_right_also_on_a_victoria_metrics_that_keeps_both_copies(tmp_path, sender):
    now = float(int(time.time()))
    (tmp_path / "server").mkdir()
    with servers.victoria_metrics(tmp_path / "server", []) as victoria, proxy(victoria) as between:
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 120, 121)
        between.faults = ["cut"]
        pushed.push()
        on_server(victoria, pushed.name, now)  # has it show what it took
        found = joules(victoria, pushed.name, now)

    assert found["count_over_time"] >= 240
    assert found["increase"] == pytest.approx(18_060, rel=1e-6)
    assert found["delta"] == pytest.approx(18_060, rel=1e-6)


@pytest.mark.parametrize("closes", ["", "said", "silently"])
def test_a_server_that_closes_connections_is_sent_on_and_little_twice(both, sender, closes, caplog):
    """That it does so is no outage; on a connection that is kept nothing goes twice."""
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        between.closes = closes
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 6_010, 6_010)
        pushed.push()

    assert agrees(both.victoria, pushed, now) == 30_050
    assert "cannot push" not in caplog.text
    # four batches; each of them up to three times more where nothing is said
    assert len(between.seen) == 4 if closes in {"", "said"} else len(between.seen) <= 16


@pytest.mark.parametrize(("name", "status"), [("a-victoria-metrics", 503), ("", 502)])
def test_answers_that_say_too_much_do_not_make_it_send_more(both, sender, name, status):
    """A VictoriaMetrics that is there has lost nothing; one behind a proxy may have, which is sent again, once."""
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


def test_connections_that_never_last_do_not_make_it_send_more_and_more_again(both, sender, caplog):
    """As those of a proxy that closes what is idle. Fourteen pushes of five samples each."""
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

    # ten times what was sent before goes again: 5, 10, 15 …
    assert sum(sent) == 70 + 275
    assert caplog.text.count("do not last for 30 s, by a proxy") == 1
    assert "cannot push" not in caplog.text
    assert agrees(both.victoria, pushed, now) == 70
    assert pushed.counted() == {"accepted": 70, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("killed", [False, True])
def test_where_pushes_are_rare_it_asks_in_between_whether_the_server_still_is_what_it_was(started, sender, killed):
    now = round(time.time(), 3)
    url = started()
    pushed = sender(url + VICTORIA, every_s=5.0, pace=Pace(first_wait_s=0.02, forgets_s=0.5))
    remember(pushed.history, now - 60, 60)
    begun_s = []

    def proved():
        if not begun_s and pushed.is_done():
            begun_s.append(time.monotonic())
            if killed:
                kill(url)
                started()
        position = pushed.history.backlog.position()
        return begun_s and pushed.is_done() and position.sure == position.done

    pushed.push(until=proved)

    assert agrees(url, pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}
