"""Errors of the client for addresses that are wrong, and for servers with another scheme."""

import pytest

from tests.raw_server import CLOSED, NEEDS_HTTPS, TLS_ALERT, raw_server
from wattline.client.api import AddressError, Api, JobApi, UnreachableError, is_temporary


@pytest.mark.parametrize(
    ("environ", "given", "address", "origin"),
    [
        ({}, None, "http://127.0.0.1:9847", ""),
        ({"WATTLINE_EXPORTER": ""}, None, "http://127.0.0.1:9847", ""),
        ({"WATTLINE_EXPORTER": "http://a:1"}, None, "http://a:1", "WATTLINE_EXPORTER"),
        ({"WATTLINE_EXPORTER": "http://a:1"}, "http://b:2", "http://b:2", "--exporter"),
    ],
)
def test_api_configured_has_address_and_its_origin(environ, given, address, origin):
    api = Api.configured(environ, given, option="--exporter")
    assert (api.address, api.origin, api.timeout_s) == (address, origin, 10.0)


def test_api_configured_of_a_job_keeps_its_timeout():
    assert JobApi.configured({}).timeout_s == 2.0
    assert Api.configured({}, timeout_s=3.0).timeout_s == 3.0


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("ftp://node", ""),
        ("http://node:x", " (Port could not be cast to integer value as 'x')"),
        ("unix://host/api.sock", ""),
    ],
)
def test_api_bad_address_names_the_variable(address, cause):
    with pytest.raises(AddressError) as error:
        Api.configured({"WATTLINE_EXPORTER": address}).readiness()
    assert str(error.value) == (
        f"{address!r} of WATTLINE_EXPORTER is not an exporter address{cause}; use the form "
        "http://127.0.0.1:9847"
    )


def test_api_https_to_server_without_tls_names_http():
    with raw_server(b"HTTP/1.0 200 OK\r\n\r\n") as address, pytest.raises(AddressError) as error:
        Api.configured({}, f"https://user:s3cret@{address}/gpus").readiness()
    assert str(error.value) == (
        f"cannot use https://{address}/gpus of exporter: the server there has no TLS; use "
        f"http://{address}/gpus"
    )


def test_api_http_to_server_that_names_https_does_so():
    with raw_server(NEEDS_HTTPS) as address, pytest.raises(AddressError) as error:
        Api(f"http://{address}").readiness()
    assert str(error.value) == (
        f"cannot use http://{address}: the server there expects TLS; use https://{address}"
    )


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (CLOSED, "it closed the connection without an answer, as servers with TLS do on http://"),
        (TLS_ALERT, "its answer is not HTTP, like that of servers with TLS on http://"),
    ],
)
def test_api_http_to_server_with_tls_names_it(answer, cause):
    """A server that restarts closes its connections, too, so that the call may be repeated."""
    with raw_server(answer) as address, pytest.raises(UnreachableError) as error:
        Api(f"http://{address}").readiness()
    assert str(error.value) == f"cannot reach an exporter at http://{address}: {cause}"
    assert is_temporary(error.value)
