"""Decision which side reports the requests of the job `llm-server`."""

from types import SimpleNamespace

import pytest

from exporter.contract.requests import served
from tests.fakes.run_api import RunApi, run_api_server
from wattline.client import request_queue
from wattline.client.api import Api
from workloads.jobs.llm_load.request_reports import RequestReports, request_headers

GPU, OTHER_GPU = "GPU-0", "GPU-1"


class ListingApi(RunApi):
    """Run API with other open runs, and their requests by run; `traces` as of an exporter with --otlp.traces."""

    def __init__(self, others, requests=None, traces=False):
        super().__init__()
        self.others, self.stored, self.traces = others, requests or {}, traces
        self.lists = 0

    def answer(self, method, path, content):
        if path == "/api/v1/runs?state=running":
            self.lists += 1
            runs = {"load": [GPU], **self.others}
            return 200, [{"run_id": name, "gpus": [{"uuid": uuid} for uuid in gpus]} for name, gpus in runs.items()]
        if path == "/metrics":
            return 200, {"wattline_otlp_spans_total": 0} if self.traces else {}
        name = path.removeprefix("/api/v1/runs/").partition("/")[0]
        return 200, {"requests": self.stored.get(name, []), "next": None}


@pytest.fixture
def report():
    """Return a function that reports two requests, and returns the numbers of those of the job's run."""

    def run(api, answer_ids=("chat-0", "chat-1")):
        reported = []
        job = SimpleNamespace(run_id="load", request=lambda *, number: reported.append(number))
        with run_api_server(api) as address:
            reports = RequestReports(job, Api(address), waits_s=(0.0,) * 4)
            for number, answer_id in enumerate(answer_ids):
                reports.add(answer_id, {"number": number})
            reports.close()
        reports.add("chat-2", {"number": 2})
        return reported

    return run


def stored(request_id, **labels):
    return {"id": request_id, "labels": labels}


def test_requests_without_other_runs_are_reported_in_order(report):
    api = ListingApi({})

    assert report(api) == [0, 1, 2]
    assert api.lists == 3  # two questions, and the last one for a warning


@pytest.mark.parametrize("traces", [False, True])
def test_server_that_may_report_is_waited_for(report, traces):
    api = ListingApi({} if traces else {"server": [GPU]}, traces=traces)

    assert report(api) == [0, 1, 2]
    assert api.lists == 5


@pytest.mark.parametrize(
    "request_of_server",
    [stored("chat-1"), stored("x", client_run="load"), stored(f"chatcmpl-{request_queue.client_run_mark('load')}a")],
    ids=["id of the answer", "label", "id of the client"],
)
@pytest.mark.parametrize("run_id", ["server", "load"])
def test_requests_that_the_server_reports_are_left_out(report, capsys, request_of_server, run_id):
    """Traces may be in the run of the job itself."""
    assert report(ListingApi({"server": [GPU]}, {run_id: [stored("other"), request_of_server]})) == []
    message = "the server reports these requests, in run server: the job does not report them again; see analyzer"
    assert (message in capsys.readouterr().err) == (run_id == "server")


@pytest.mark.parametrize(("gpu", "warns"), [(GPU, True), (OTHER_GPU, False)])
def test_unknown_requests_on_the_same_gpu_are_warned_of(report, capsys, gpu, warns):
    assert report(ListingApi({"server": [gpu]}, {"server": [stored("other")]})) == [0, 1, 2]
    assert ("run server reports requests on the same GPUs: if they are" in capsys.readouterr().err) == warns


def test_requests_that_the_server_reports_late_are_warned_of(report, capsys):
    class Late(ListingApi):
        def answer(self, method, path, content):
            if self.lists > 4:
                self.stored = {"server": [stored("chat-1")]}
            return super().answer(method, path, content)

    assert report(Late({"server": [GPU]})) == [0, 1, 2]
    assert "run server has these requests, too, since the server reported them late" in capsys.readouterr().err


def test_exporter_that_is_busy_is_asked_again(report):
    class Busy(ListingApi):
        def answer(self, method, path, content):
            if path.startswith("/api/v1/runs?") and not self.lists:
                self.lists += 1
                return 503, {"status": 503, "detail": "it is starting"}
            return super().answer(method, path, content)

    assert report(Busy({"server": [GPU]}, {"server": [stored("chat-1")]})) == []


def test_exporter_that_does_not_answer_lets_the_job_report(report):
    class Failing(ListingApi):
        def answer(self, method, path, content):
            return 404, {"status": 404, "detail": "there is no such path"}

    assert report(Failing({})) == [0, 1, 2]


def test_requests_of_a_job_without_run_are_not_kept():
    reports = RequestReports(SimpleNamespace(run_id=None), Api("http://127.0.0.1:9"))
    reports.add("chat-0", {"number": 0})
    reports.close()

    assert request_headers(None) == {}


def test_headers_name_the_run_and_differ_by_request():
    first, second = (request_headers("load") for _ in range(2))

    assert first["Wattline-Run"] == second["Wattline-Run"] == "load"
    assert first["X-Request-Id"] != second["X-Request-Id"]
    assert request_queue.client_run_of(f"chatcmpl-{first['X-Request-Id']}-0") == "load"
    assert len(f"chatcmpl-{request_headers('r' * 64)['X-Request-Id']}-0") < 120  # the middleware shortens longer ones


@pytest.mark.parametrize("request_id", ["chatcmpl-1", "a~b~c", "wattline~b", ""])
def test_ids_without_the_run_of_a_client_have_none(request_id):
    assert request_queue.client_run_of(request_id) is None


def test_contract_and_client_have_the_same_label_and_mark():
    assert request_queue.CLIENT_RUN_LABEL == served.CLIENT_RUN_LABEL
    assert request_queue.client_run_mark("load") == served.client_run_mark("load")
