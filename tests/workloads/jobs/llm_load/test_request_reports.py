"""Decision which side reports the requests of the job `llm-server`."""

import math
from types import SimpleNamespace

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from wattline.client.api import Api
from wattline.contract.requests.served import client_run_mark, client_run_of
from wattline_workloads.jobs.llm_load import request_reports
from wattline_workloads.jobs.llm_load.request_reports import RequestReports, Waits, request_headers

GPU, OTHER_GPU = "GPU-0", "GPU-1"
LONG_IDS = ("chatcmpl-5f1d0a9c", "chatcmpl-77b2e4d0")
MARK = client_run_mark("load")
WAITS = Waits(0.0, 0.0, 0.0)


class ListingApi(RunApi):
    """Run API with other open runs, and their requests by run; `traces` as of an exporter with
    --otlp.traces.
    """

    def __init__(self, others, requests=None, traces=False):
        super().__init__()
        self.others, self.stored, self.traces = others, requests or {}, traces
        self.lists = 0

    def answer(self, method, path, content):
        if path == "/api/v1/runs?state=running":
            self.lists += 1
            runs = {"load": [GPU], **self.others}
            return 200, [
                {"run_id": name, "gpus": [{"uuid": uuid} for uuid in gpus]}
                for name, gpus in runs.items()
            ]
        if path == "/metrics":
            return 200, {"wattline_otlp_spans_total": 0} if self.traces else {}
        name = path.removeprefix("/api/v1/runs/").partition("/")[0]
        return 200, {"requests": self.stored.get(name, []), "next": None}


def of_job(number, ended_at=1_000.0):
    return {
        "request_id": f"own-{number}",
        "ended_at": ended_at,
        "prompt_tokens": 5,
        "generated_tokens": 7,
    }


def of_server(request_id, ended_at=1_000.1, generated_tokens=7, **labels):
    tokens = {"prompt_tokens": 5, "generated_tokens": generated_tokens}
    return {"id": request_id, "ended_at": ended_at, "labels": labels, **tokens}


@pytest.fixture
def report():
    """Return a function that reports requests with these ids of answers, and returns the numbers of
    the reported ones.

    They ended long ago, so none waits for a further question.
    """

    def run(api, answer_ids=(LONG_IDS[0], LONG_IDS[1]), waits=WAITS):
        reported = []
        job = SimpleNamespace(
            run_id="load", request=lambda *, request_id, **_: reported.append(request_id)
        )
        with run_api_server(api) as address:
            reports = RequestReports(job, Api(address), waits)
            for number, answer_id in enumerate(answer_ids):
                reports.add(answer_id, of_job(number))
            reports.close()
        reports.add(None, of_job("last"))
        return [each.removeprefix("own-") for each in reported]

    return run


def test_requests_that_no_server_reports_are_reported_in_order(report):
    assert report(ListingApi({"server": [GPU]})) == ["0", "1", "last"]


@pytest.mark.parametrize(
    ("others", "traces", "waits"), [({}, False, 1), ({"server": [GPU]}, False, 2), ({}, True, 2)]
)
def test_requests_wait_longer_where_a_server_may_report(report, others, traces, waits):
    """They wait for 5 s if no server may report, else for 10 s; the exporter is asked after 0 and 7
    s.
    """
    api, now_s = ListingApi(others, traces=traces), 1_000.0

    class Clock:
        time = staticmethod(lambda: now_s)

        @staticmethod
        def sleep(_):
            nonlocal now_s
            now_s += 7.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_reports, "time", Clock)
        assert report(api, waits=Waits(1.0, held_s=10.0, alone_s=5.0)) == ["0", "1", "last"]
    assert api.lists == waits + 1  # and the last question, for a warning


@pytest.mark.parametrize("run_id", ["server", "load"])
@pytest.mark.parametrize(
    ("answer_id", "reported"),
    [
        pytest.param("chat-1", of_server("chat-1", client_run="load"), id="label"),
        pytest.param(
            LONG_IDS[1], of_server(LONG_IDS[1]), id="id of the answer, by a proxy without the label"
        ),
        pytest.param(
            f"cmpl-{MARK}{16 * 'a'}", of_server(f"cmpl-{MARK}{16 * 'a'}-0-b"), id="id of the client"
        ),
        pytest.param(
            "chat-1", of_server("other", client_run="load"), id="label, and another id of a gateway"
        ),
        pytest.param(
            None, of_server("other", client_run="load"), id="label, and no id of the answer"
        ),
    ],
)
def test_request_that_the_server_reports_is_left_out(report, capsys, answer_id, reported, run_id):
    """The server may also report in the run of the job itself. The others are reported."""
    api = ListingApi({"server": [GPU]}, {run_id: [of_server("unknown", 990.0), reported]})

    assert report(api, ("first-of-the-job", answer_id)) in (["0"], ["1"])
    assert (
        "the server reports these requests, in run server: the job" in capsys.readouterr().err
    ) == (run_id == "server")


@pytest.mark.parametrize(
    "reported",
    [
        of_server("chat-1"),
        of_server(LONG_IDS[1], ended_at=1_002.0),
        of_server(LONG_IDS[1], generated_tokens=8),
        of_server("other", client_run="load-2"),
        of_server(LONG_IDS[1].upper()),
    ],
    ids=["short id", "other time", "other tokens", "other run", "other id"],
)
def test_request_of_another_client_is_not_that_of_the_job(report, reported):
    assert report(
        ListingApi({"server": [GPU]}, {"server": [reported]}), ("chat-1", LONG_IDS[1])
    ) == ["0", "1", "last"]


def test_server_without_gpu_leaves_the_reports_to_the_job(report):
    """Its run divides no energy."""
    reported = of_server(LONG_IDS[1], client_run="load")
    assert report(ListingApi({"server": []}, {"server": [reported]})) == ["0", "1", "last"]


@pytest.mark.parametrize("gpu", [GPU, OTHER_GPU])
@pytest.mark.parametrize("labels", [{"client_run": "load"}, {}])
def test_message_names_the_run_that_the_analyzer_finds(report, capsys, gpu, labels):
    """It finds requests with the job's label in runs on the job's GPUs."""
    report(ListingApi({"server": [gpu]}, {"server": [of_server(LONG_IDS[1], **labels)]}))

    named = "load" if gpu == GPU and labels else "server"
    assert f"see analyzer requests --run-id {named} --source" in capsys.readouterr().err


def test_one_report_of_a_server_stands_for_one_request(report):
    api = ListingApi({"server": [GPU]}, {"server": [of_server("other", client_run="load")]})

    assert len(report(api, (None, None, None))) == 2


@pytest.mark.parametrize(("gpu", "warns"), [(GPU, True), (OTHER_GPU, False)])
def test_unknown_requests_on_the_same_gpu_are_warned_of(report, capsys, gpu, warns):
    assert report(ListingApi({"server": [gpu]}, {"server": [of_server("other", 990.0)]})) == [
        "0",
        "1",
        "last",
    ]
    assert (
        "run server reports requests on the same GPUs: if they are" in capsys.readouterr().err
    ) == warns


@pytest.mark.parametrize(("by_server", "warns"), [(2, False), (1, True)])
def test_second_server_is_warned_of_only_if_the_job_reports(report, capsys, by_server, warns):
    """Its requests are those of other clients if the first server reports all of the job."""
    api = ListingApi(
        {"server": [GPU], "second": [GPU]},
        {
            "server": [of_server(each) for each in LONG_IDS[:by_server]],
            "second": [of_server("other", 990.0)],
        },
    )
    assert report(api) == ["0", "1"][by_server:]
    assert (
        "run second reports requests on the same GPUs: if they are" in capsys.readouterr().err
    ) == warns


@pytest.mark.parametrize(("run_id", "labels"), [("server", {}), ("load", {"client_run": "load"})])
def test_requests_that_the_server_reports_late_are_warned_of(report, capsys, run_id, labels):
    class Late(ListingApi):
        def answer(self, method, path, content):
            if self.lists > 1:
                self.stored = {run_id: [of_server(LONG_IDS[1], **labels)]}
            return super().answer(method, path, content)

    assert report(Late({"server": [GPU]})) == ["0", "1", "last"]
    assert (
        f"run {run_id} has these requests, too, since the server reported them late"
        in capsys.readouterr().err
    )


def test_requests_that_the_exporter_lists_on_further_pages_are_left_out(report):
    class Paged(ListingApi):
        def answer(self, method, path, content):
            status, page = super().answer(method, path, content)
            if "/server/" in path and "after=" not in path:
                page = {"requests": [], "next": "1:0"}
            return status, page

    api = Paged({"server": [GPU]}, {"server": [of_server(each) for each in LONG_IDS]})
    assert report(api) == []


def test_exporter_that_is_busy_is_asked_again(report):
    class Busy(ListingApi):
        def answer(self, method, path, content):
            if path.startswith("/api/v1/runs?") and not self.lists:
                self.lists += 1
                return 503, {"status": 503, "detail": "it is starting"}
            return super().answer(method, path, content)

    api = Busy({"server": [GPU]}, {"server": [of_server(each) for each in LONG_IDS]})
    assert report(api, waits=Waits(0.0, held_s=math.inf, alone_s=0.0)) == []


def test_exporter_that_does_not_answer_lets_the_job_report(report):
    class Failing(ListingApi):
        def answer(self, method, path, content):
            return 404, {"status": 404, "detail": "there is no such path"}

    assert report(Failing({}), waits=Waits(0.0, held_s=math.inf, alone_s=math.inf)) == [
        "0",
        "1",
        "last",
    ]


def test_requests_of_a_job_without_run_are_not_kept():
    reports = RequestReports(SimpleNamespace(run_id=None), Api("http://127.0.0.1:9"))
    reports.add("chat-0", {"number": 0})
    reports.close()

    assert request_headers(None) == {}


def test_headers_name_the_run_and_differ_by_request():
    first, second = (request_headers("load") for _ in range(2))

    assert first["Wattline-Run"] == second["Wattline-Run"] == "load"
    assert first["X-Request-Id"] != second["X-Request-Id"]
    assert client_run_of(f"chatcmpl-{first['X-Request-Id']}-0") == "load"
    assert (
        len(f"chatcmpl-{request_headers('r' * 64)['X-Request-Id']}-0") < 120
    )  # the middleware shortens longer ones


@pytest.mark.parametrize("request_id", ["chatcmpl-1", "a~b~c", "wattline~b", ""])
def test_ids_without_the_run_of_a_client_have_none(request_id):
    assert client_run_of(request_id) is None
