"""Accepted Host headers."""

import socket

import pytest

from wattline_exporter.web.access import HostNames, is_loopback, parse_host

HOSTS = HostNames("10.1.2.3", ["gpu.example.org", "Node7."])


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
def test_host_names_own_name_is_accepted(header):
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
def test_host_names_other_name_is_refused(header):
    assert not HOSTS.accept(header, "192.0.2.7")


def test_host_names_mapped_ipv4_address_is_accepted():
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
def test_is_loopback_address_or_name_is_classified(host, loopback):
    assert is_loopback(host) == loopback


def test_parse_host_header_returns_name_without_port():
    assert parse_host("A.example:80") == "a.example"
