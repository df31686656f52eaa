"""Options of carbon intensities: providers, conflicts, and errors without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import electricity_maps, watttime
from wattline_exporter.config.values import UsageError
from wattline_exporter.sensors.carbon.choice import carbon_feeds, carbon_providers
from wattline_exporter.sensors.carbon.options import CarbonOptions
from wattline_exporter.sensors.carbon.providers import read_provider_secret

BOTH = f"# the node's\nelectricitymaps={electricity_maps.TOKEN}\n\nwatttime={watttime.USER}:{watttime.PASSWORD}\n"


@pytest.fixture(autouse=True)
def _unset_token(monkeypatch):
    monkeypatch.delenv("WATTLINE_CARBON_TOKEN", raising=False)


def options(tmp_path: Path, secrets: str | None = None, **given) -> CarbonOptions:
    if secrets is not None:
        (tmp_path / "token").write_text(secrets)
        given["token_file"] = tmp_path / "token"
    return CarbonOptions(**given)


def created_providers(
    tmp_path: Path, secrets: str | None = None, **given
) -> list[tuple[str, str, str]]:
    return [
        (p.source.name, p.source.region, p.source.basis)
        for p in carbon_providers(options(tmp_path, secrets, **given))
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"provider": "gb"}, [("gb", "GB", "average")]),
        ({"provider": "gb", "region": "ox1 3qd"}, [("gb", "OX1", "average")]),
        ({"provider": "energy-charts", "region": "Germany"}, [("energy-charts", "de", "average")]),
        ({"provider": "electricitymaps", "region": "de"}, [("electricitymaps", "DE", "average")]),
        (
            {"provider": "watttime", "region": "caiso_north"},
            [("watttime", "CAISO_NORTH", "marginal")],
        ),
        ({"region": "DE"}, [("static", "DEU", "average")]),
        ({"intensity": 230.0}, [("static", "custom", "average")]),
        (
            {"provider": "gb", "marginal_provider": "watttime", "marginal_region": "51.5,-0.1"},
            [("gb", "GB", "average"), ("watttime", "51.5,-0.1", "marginal")],
        ),
        (
            {"marginal_provider": "watttime", "marginal_region": "X"},
            [("watttime", "X", "marginal")],
        ),
    ],
)
def test_carbon_options_create_at_most_one_provider_per_basis(tmp_path, given, expected):
    assert created_providers(tmp_path, BOTH, **given) == expected
    assert len(carbon_feeds(carbon_providers(options(tmp_path, BOTH, **given)), None).feeds) == len(
        expected
    )


def test_shared_intensities_need_no_secret(tmp_path):
    given = {"provider": "electricitymaps", "region": "de", "shared": "http://node1:9847"}
    marginal = {"marginal_provider": "watttime", "marginal_region": "caiso_north"}
    assert created_providers(tmp_path, **given, **marginal) == [
        ("electricitymaps", "DE", "average"),
        ("watttime", "CAISO_NORTH", "marginal"),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"provider": "us"},
            (
                "unknown provider 'us'; use one of electricitymaps, energy-charts, gb, static, "
                "watttime"
            ),
        ),
        (
            {"provider": "energy-charts"},
            "list the regions with: exporter regions --carbon.provider energy-charts",
        ),
        ({"provider": "energy-charts", "region": "Japan"}, "is not a country of energy-charts"),
        ({"provider": "electricitymaps", "region": "Germany"}, "is not a zone of electricitymaps"),
        ({"provider": "gb", "intensity": 230.0}, "remove --carbon.provider gb"),
        ({"region": "OX1"}, "is a region of gb; add --carbon.provider gb"),
        (
            {"marginal_provider": "gb", "marginal_region": "GB"},
            "has no marginal intensities; use watttime",
        ),
        (
            {"marginal_region": "CAISO_NORTH"},
            "--carbon.marginal-region needs --carbon.marginal-provider watttime",
        ),
        (
            {"marginal_url": "https://a.example"},
            "--carbon.marginal-url needs --carbon.marginal-provider watttime",
        ),
        ({"url": "https://a.example"}, "--carbon.url needs a --carbon.provider"),
        ({"shared": "http://a.example"}, "--carbon.shared needs a --carbon.provider"),
        (
            {"provider": "gb", "shared": "http://a.example?b"},
            "--carbon.shared: expected http://HOST/PATH",
        ),
        (
            {"provider": "gb", "shared": "http://a.example", "url": "http://b.example"},
            "--carbon.shared replaces the requests to the provider",
        ),
        (
            {"intensity": 230.0, "url": "https://a.example"},
            "--carbon.url needs a --carbon.provider",
        ),
        ({"region": "DE", "url": "https://a.example"}, "--carbon.url needs a --carbon.provider"),
        ({"marginal_provider": "watttime"}, "needs --carbon.marginal-region"),
        (
            {"marginal_provider": "watttime", "marginal_region": "a b"},
            "is not a region of watttime",
        ),
        (
            {
                "provider": "watttime",
                "region": "X",
                "marginal_provider": "watttime",
                "marginal_region": "Y",
            },
            "are both marginal; remove one",
        ),
        ({"provider": "gb", "url": "api.example"}, "--carbon.url: expected http://HOST/PATH"),
        ({"provider": "gb", "url": "https://ada:s3cret@example"}, "without a user"),
        ({"provider": "gb", "url": "https://example/?key=s3cret"}, "without a user, a query"),
    ],
)
def test_carbon_options_conflict_is_reported_with_remedy(tmp_path, given, words):
    with pytest.raises(UsageError) as caught:
        carbon_providers(options(tmp_path, BOTH, **given))
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_carbon_token_single_line_is_used(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("abc=\n")
    assert read_provider_secret(path, "electricitymaps") == "abc="
    monkeypatch.setenv("WATTLINE_CARBON_TOKEN", "from-outside")
    assert read_provider_secret(None, "watttime") == "from-outside"
    path.write_text("from-file")
    assert read_provider_secret(path, "watttime") == "from-file"


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (None, "electricitymaps needs a token; store it in a file for --carbon.token-file"),
        ("", "electricitymaps needs a token"),
        ("watttime=s3cret:s3cret", "electricitymaps needs a token"),
        (
            "s3cret\ns3cret2",
            "more than one carbon token for electricitymaps; use one line electricitymaps=SECRET",
        ),
        ("s3cr\x07et", "invalid carbon token for electricitymaps"),
        ("s3crét", "invalid carbon token for electricitymaps"),
    ],
)
def test_carbon_token_invalid_is_reported_without_it(tmp_path, secrets, words):
    with pytest.raises(UsageError) as caught:
        created_providers(tmp_path, secrets, provider="electricitymaps", region="DE")
    assert words in str(caught.value)
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize("secrets", ["ada", "ada:", ":pw", ""])
def test_watttime_needs_user_and_password(tmp_path, secrets):
    with pytest.raises(UsageError, match="watttime needs USER:PASSWORD"):
        created_providers(tmp_path, secrets, provider="watttime", region="CAISO_NORTH")


def test_carbon_token_file_unreadable_is_one_line(tmp_path):
    with pytest.raises(
        UsageError,
        match=r"token-file: cannot read .*missing: No such file.*readable for the exporter",
    ):
        carbon_providers(
            options(
                tmp_path, provider="electricitymaps", region="DE", token_file=tmp_path / "missing"
            )
        )
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        carbon_providers(
            options(
                tmp_path, provider="electricitymaps", region="DE", token_file=tmp_path / "bytes"
            )
        )


@pytest.mark.parametrize(
    ("given", "region"),
    [
        ({"provider": "gb", "region": "London"}, "GBR"),
        ({"provider": "electricitymaps", "region": "US-CAL-CISO"}, "USA"),
        ({"provider": "electricitymaps", "region": "XK"}, None),
        ({"provider": "energy-charts", "region": "uk"}, "GBR"),
        ({"provider": "energy-charts", "region": "eu"}, "EU"),
        ({"provider": "energy-charts", "region": "xk"}, None),
        ({"provider": "watttime", "region": "CAISO_NORTH"}, None),
    ],
)
def test_static_fallback_is_the_mean_of_the_country(tmp_path, given, region):
    (chosen,) = carbon_providers(options(tmp_path, BOTH, **given))
    assert (chosen.fallback.region if chosen.fallback else None) == region
