"""Names under which the exporter may be asked."""

import socket

import pytest

from exporter.web.hosts import Hosts, host_of, is_loopback

HOSTS = Hosts("10.1.2.3", ["gpu.example.org", "Node7."])


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "localhost:9847",
        "LOCALHOST.",
        "127.0.0.1:9847",
        "127.9.9.9",
        "[::1]:9847",
        "[::1]",
        "[::ffff:127.0.0.1]:1",
        "10.1.2.3:9847",
        "192.0.2.7",
        "gpu.example.org:443",
        "node7:9847",
        socket.gethostname(),
    ],
)
def test_a_name_of_ours_is_accepted(header):
    assert HOSTS.accept(header, "192.0.2.7")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "gpu.example.org.evil.example",
        "127.0.0.1.nip.io",
        "192.0.2.8",
        "[2001:db8::1]",
        "localhost@evil.example",
        "localhost:9847:1",
        "localhost:port",
        "localhost/../evil",
        "[localhost]",
        "::1",
        "local host",
        "127.0.0.1\x00.evil.example",
        "2130706433",
        "0x7f.1",
    ],
)
def test_any_other_name_is_not(header):
    assert not HOSTS.accept(header, "192.0.2.7")


def test_an_ipv4_address_is_known_on_a_socket_of_both_kinds():
    assert HOSTS.accept("192.0.2.7:9847", "::ffff:192.0.2.7")
    assert HOSTS.accept("[fe80::1]", "fe80::1%eth0")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("::", False),
        ("n", False),
    ],
)
def test_what_is_beyond_loopback(host, loopback):
    assert is_loopback(host) == loopback


def test_the_port_is_no_part_of_the_name():
    assert host_of("A.example:80") == "a.example"
