"""What Grafana reads at its start. More than one source of an organization that claims to be the default stops it."""

import yaml

from tests.grafana.ask import DASHBOARDS, boards

PROVISIONING = DASHBOARDS.parent / "provisioning"
SOURCES = [
    source
    for path in sorted((PROVISIONING / "datasources").glob("*.yml"))
    for source in yaml.safe_load(path.read_text())["datasources"]
]


def test_both_sources_may_be_copied_beside_others_that_a_grafana_has():
    assert [source["type"] for source in SOURCES] == ["prometheus", "prometheus"]
    assert len({source["uid"] for source in SOURCES}) == len({source["name"] for source in SOURCES}) == 2
    assert not any(source.get("isDefault") for source in SOURCES)


def test_dashboards_ask_the_source_that_is_chosen_and_not_one_by_its_uid():
    for uid, board in boards().items():
        choice = board["templating"]["list"][0]
        assert (choice["name"], choice["type"], choice["query"]) == ("datasource", "datasource", "prometheus")
        marks = board.get("annotations", {}).get("list", [])
        asked = [each["datasource"] for each in [*board["panels"], *marks] if each.get("type") != "row"]
        assert {source["uid"] for source in asked} == {"${datasource}"}, uid


def test_the_provider_of_dashboards_has_only_keys_that_grafana_knows():
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "wattline.yml").read_text())["providers"]

    known = {"name", "orgId", "folder", "folderUid", "type", "disableDeletion", "updateIntervalSeconds"}
    assert set(provider) <= known | {"allowUiUpdates", "options"}
    assert set(provider["options"]) <= {"path", "foldersFromFilesStructure"}
    assert provider["type"] == "file"
