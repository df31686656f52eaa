"""Errors of servers with another scheme than the address of --source."""

import ssl

import pytest
import requests

from tests.raw_server import CLOSED, NEEDS_HTTPS, raw_server
from wattline_analyzer.core.sources.base import Access, FetchError
from wattline_analyzer.core.sources.http import http_session, not_json, translate_errors


def get(url: str) -> requests.Response:
    with translate_errors(url, 5.0), http_session(Access()) as session:
        return session.get(url, timeout=5.0)


def test_https_to_server_without_tls_names_http():
    with raw_server(b"HTTP/1.0 200 OK\r\n\r\n") as address, pytest.raises(FetchError) as error:
        get(f"https://{address}")
    assert str(error.value) == (
        f"cannot connect to https://{address}: the server there has no TLS; use http:// in --source"
    )


def test_http_to_server_with_tls_names_https():
    with raw_server(CLOSED) as address, pytest.raises(FetchError) as error:
        get(f"http://{address}")
    assert str(error.value) == (
        f"no response from http://{address}: it closed the connection, as servers with TLS do on "
        "http://; use https:// in --source if it has TLS, else check that it is running"
    )


def test_http_to_server_that_names_https_does_so():
    with raw_server(NEEDS_HTTPS) as address:
        error = not_json(f"http://{address}", get(f"http://{address}"))
    assert str(error) == f"http://{address} expects TLS; use https:// in --source"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (
            ssl.SSLCertVerificationError("self-signed certificate"),
            "its TLS certificate is not trusted; give --ca-file the authority that signed it",
        ),
        (
            ssl.SSLError(1, "certificate required"),
            "the TLS handshake failed: certificate required; check the TLS settings of that server",
        ),
    ],
)
def test_handshake_error_names_its_cause(cause, text):
    def fail() -> None:
        with translate_errors("https://node", 5.0):
            raise requests.exceptions.SSLError(cause)

    with pytest.raises(FetchError) as error:
        fail()
    assert str(error.value) == f"cannot connect to https://node: {text}"
