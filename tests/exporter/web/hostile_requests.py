"""Random malformed and hostile requests as bytes: broken HTTP, hostile JSON and hostile queries."""

from urllib.parse import quote

METHODS = [
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "HEAD",
    "PATCH",
    "get",
    "G\x00T",
    "PRI",
    "CONNECT",
    "",
    "A" * 400,
]
PATHS = [
    "/",
    "/metrics",
    "/api/v1/runs",
    "/api/v1/runs/kept/work",
    "/api/v1/runs/%00/end",
    "/api/v1/runs/..%2f..%2fetc/phase",
    "/api/v1/runs?state=running&state=ended",
    "/api/v1/runs?state=%ff",
    "//metrics",
    "/metrics/../api/v1/query",
    "http://evil.example/metrics",
    "*",
    "\xff\xfe",
    "/" + "a" * 9_000,
    "/-/ready;x",
    "/api/v1/query?" + "a=b&" * 900,
]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", "", "HTTP/1.1 x"]
HEADERS = [
    "Host: localhost",
    "Host: localhost",
    "Host: evil.example",
    "Host: [",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 1e3",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Encoding: gzip",
    "Content-Type: application/json",
    "Content-Type: application/json; charset=utf-7",
    "Content-Type: multipart/form-data; boundary=x",
    "Expect: 100-continue",
    "Expect: the-worst",
    "Upgrade: websocket",
    "Connection: Upgrade, close",
    "Authorization: Basic \xff\xfe",
    "Authorization: Bearer " + "x" * 500,
    "Accept: application/openmetrics-text;version=9.9.9;q=x",
    "Accept-Encoding: gzip;q=nan",
    "Cookie: " + "a=b;" * 200,
    "no colon at all",
    " folded: header",
    "X-\x00: y",
    "X: " + "a" * 9_000,
    "Range: bytes=0-,5-1,-",
    "If-None-Match: *",
]
BODIES = [
    b"",
    b"{",
    b"[" * 5_000,
    b'{"workload":' * 1_000,
    b'{"workload": "a\\ud800"}',
    b'{"workload": "\\u0000\\u001b[2J"}',
    b'{"workload": 1e999}',
    b'{"workload": "x", "lease_seconds": NaN}',
    b'{"workload": "x", "pids": [99999999999999999999999]}',
    b'{"workload": "x", "labels": {"__name__": "up", "run_id": "forged"}, "gpus": ["../../etc"]}',
    b'{"workload": "x", "cgroup": "/../../../../etc/passwd"}',
    b'{"workload": "x", "run_id": "../../x"}',
    b'{"contributor": "' + b"x" * 200 + b'", "tokens": 1e308}',
    b'{"generated_tokens": -0.0, "contributor": "a"}',
    b"\xff\xfe\x00",
    b"null",
    b'{"a": "' + b"y" * 300_000 + b'"}',
    b'5\r\n{"a":\r\nZZ\r\n',
    b"FFFFFFFFFFFFFFFF\r\n",
]
QUERIES = [
    "up",
    "{}[1s]",
    '{a=~"(a+)+$"}[5m]',
    '{__name__=~"(.*)*(.*)*(.*)*x"}[30d]',
    '{a=~"' + "(" * 500 + '"}[1s]',
    '{a=~"a{9999999999}"}[1s]',
    '{a=~"(a{1000}){1000}"}[1s]',
    '{a=~"\\\\"}[1s]',
    '{__name__!=""}[99999999999999999999999999999d]',
    "wattline_build_info[1s",
    '{a="\udcff"}[1s]',
    '{a="\0"}[1s]',
    'wattline_gpu_power_watts{gpu!~"[^0-9]|"}[1m]',
    "sum(rate(x[5m]))",
    "x' OR 1=1 --[1s]",
    '{a="' + '\\"' * 900 + '"}[1s]',
]
TIMES = ["", "&time=1e308", "&time=nan", "&time=-1e300", "&time=9" * 1, "&time=0x10", "&time=1_0"]


def hostile_request(source):
    """Return random bytes that may be a request."""
    kind = source.random()
    if kind < 0.05:
        return source.randbytes(source.randrange(1, 300))
    if kind < 0.3:
        query = quote(source.choice(QUERIES), errors="surrogateescape", safe="")
        line, body = f"GET /api/v1/query?query={query}{source.choice(TIMES)} HTTP/1.1", b""
        lines = [line, "Host: localhost"]
    elif kind < 0.6:
        body = source.choice(BODIES)
        step = source.choice(["", "/kept/work", "/kept/phase", "/kept/processes", "/none/end"])
        lines = [
            f"POST /api/v1/runs{step} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
        ]
        lines.append(f"Content-Length: {len(body) + source.choice([0, 0, 0, 0, -1])}")
    else:
        request_line = " ".join(
            [source.choice(METHODS), source.choice(PATHS), source.choice(VERSIONS)]
        )
        body = source.choice(BODIES) if source.random() < 0.3 else b""
        lines = [request_line, *source.choices(HEADERS, k=source.randrange(6))]
    ending = source.choice(["\r\n", "\r\n", "\r\n", "\r\n", "\n"])
    if source.random() < 0.8:
        lines.append("Connection: close")
    request = (ending.join(lines) + ending * 2).encode("latin-1", "replace") + body
    if source.random() < 0.1 and len(request) > 2:
        position = source.randrange(len(request))
        request = (
            request[:position]
            + source.randbytes(source.randrange(3))
            + request[position + source.randrange(3) :]
        )
    return request
