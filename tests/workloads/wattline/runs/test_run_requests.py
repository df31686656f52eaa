"""Requests that a program reports with the client."""


def test_request_posts_batch_with_optional_fields(exporter, script):
    exporter.python(
        script("""
        with wattline.run("serve") as run:
            run.request(started_at=10, ended_at=12.5, prompt_tokens=7, generated_tokens=3)
            run.request(
                request_id="r-1", started_at=10, first_token_at=10.5, ended_at=12, prompt_tokens=7, cached_tokens=4,
                generated_tokens=3, labels={"user": "ann", "tier": 2},
            )
        """)
    )

    first, second = exporter.api.served.values()
    assert {name: value for name, value in first.items() if name != "id"} == {
        "started_at": 10,
        "ended_at": 12.5,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "generated_tokens": 3,
        "labels": {},
    }
    assert second == {
        "id": "r-1",
        "started_at": 10,
        "first_token_at": 10.5,
        "ended_at": 12,
        "prompt_tokens": 7,
        "cached_tokens": 4,
        "generated_tokens": 3,
        "labels": {"user": "ann", "tier": "2"},
    }
    assert exporter.api.only_run.results == {}


def test_request_that_is_refused_is_declared_in_the_results(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("serve") as run:
            for tokens in (1, -1, 2):
                run.request(started_at=1, ended_at=2, prompt_tokens=1, generated_tokens=tokens)
        """)
    )

    assert [one["generated_tokens"] for one in exporter.api.served.values()] == [1, 2]
    assert exporter.api.only_run.results == {"requests_not_recorded": 1}
    assert "wattline: 1 requests were not recorded" in done.stderr


def test_request_with_numbers_of_numpy_or_nan_does_not_stop_the_others(exporter, script):
    done = exporter.python(
        script("""
        import numpy
        with wattline.run("serve") as run:
            run.request(started_at=float("nan"), ended_at=2, prompt_tokens=1, generated_tokens=1)
            run.request(started_at=numpy.float64(1.5), ended_at=2, prompt_tokens=numpy.int64(4), generated_tokens=3)
        """)
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert [(one["started_at"], one["prompt_tokens"]) for one in exporter.api.served.values()] == [
        (1.5, 4)
    ]
    assert exporter.api.only_run.results == {"requests_not_recorded": 1}
