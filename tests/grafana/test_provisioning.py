"""Provisioning files. Grafana does not start with two default data sources in one organization."""

import yaml

from tests.grafana.query import DASHBOARDS, boards

PROVISIONING = DASHBOARDS.parent / "provisioning"
SOURCES = [
    source
    for path in sorted((PROVISIONING / "datasources").glob("*.yml"))
    for source in yaml.safe_load(path.read_text())["datasources"]
]


def test_data_sources_are_distinct_and_not_default():
    assert [source["type"] for source in SOURCES] == ["prometheus", "prometheus"]
    assert (
        len({source["uid"] for source in SOURCES})
        == len({source["name"] for source in SOURCES})
        == 2
    )
    assert not any(source.get("isDefault") for source in SOURCES)


def test_dashboards_query_the_selected_data_source():
    for uid, board in boards().items():
        choice = board["templating"]["list"][0]
        assert (choice["name"], choice["type"], choice["query"]) == (
            "datasource",
            "datasource",
            "prometheus",
        )
        marks = board.get("annotations", {}).get("list", [])
        queried = [
            each["datasource"] for each in [*board["panels"], *marks] if each.get("type") != "row"
        ]
        assert {source["uid"] for source in queried} == {"${datasource}"}, uid


def test_dashboard_provider_has_known_keys_only():
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "wattline.yml").read_text())[
        "providers"
    ]

    known = {
        "name",
        "orgId",
        "folder",
        "folderUid",
        "type",
        "disableDeletion",
        "updateIntervalSeconds",
    }
    assert set(provider) <= known | {"allowUiUpdates", "options"}
    assert set(provider["options"]) <= {"path", "foldersFromFilesStructure"}
    assert provider["type"] == "file"
