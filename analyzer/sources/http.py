"""A connection to a server of samples: what lets us in, and in one line why there is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from analyzer.sources.access import Access
from analyzer.sources.error import SourceError

PATHS = "a VictoriaMetrics cluster wants …/select/0/prometheus, Mimir …/prometheus"


class _Bearer(AuthBase):
    """A header alone would lose against ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        r.headers["Authorization"] = f"Bearer {self._token}"
        return r


def opened(access: Access) -> requests.Session:
    session = requests.Session()
    session.headers.update(access.headers)
    if access.basic_auth:
        session.auth = access.basic_auth
    if access.bearer_token:
        session.auth = _Bearer(access.bearer_token)
    if access.ca_file:
        session.verify = str(access.ca_file)
    return session


def name_of(address: str) -> str:
    """As it may be shown: without credentials."""
    parts = urlsplit(address)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"


@contextmanager
def answering(name: str, timeout_s: float) -> Iterator[None]:
    """Around a request: raises SourceError where no answer comes."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise SourceError(
            f"{name} has a certificate that is not trusted here",
            "give --ca-file the authority that signed it, or use http:// where the server speaks no TLS",
        ) from error
    except requests.Timeout as error:
        raise SourceError(
            f"no answer from {name} within {timeout_s:.0f} s", "is it overloaded, or a firewall between?"
        ) from error
    except requests.ConnectionError as error:
        raise SourceError(f"cannot reach {name}", "is it running, and is the address right? see --source") from error
    except (requests.RequestException, ValueError) as error:
        raise SourceError(f"{name} is no address to read from: {error}", "see --source") from error


def locked_out(name: str, response: requests.Response) -> SourceError:
    """Of an answer with 401 or 403."""
    cause = f"{name} does not let us in (HTTP {response.status_code})"
    if "no org id" in response.text.lower():
        return SourceError(f"{cause}: it wants to know the tenant", "give --header 'X-Scope-OrgID: TENANT'")
    return SourceError(cause, "give --basic-auth USER:PASSWORD-FILE, --bearer-token-file or --header")


def no_json(name: str, response: requests.Response) -> SourceError:
    kind = response.headers.get("Content-Type", "nothing").partition(";")[0]
    return SourceError(
        f"{name} answered HTTP {response.status_code} with {kind}, not with Prometheus's JSON",
        f"is its path missing? {PATHS}",
    )
