"""GitHub action and GitLab job of `deploy/ci`: valid by the schemas of both, and their scripts with
a real exporter.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.daemon import daemon

CI = Path(__file__).parents[2] / "deploy" / "ci"
EXPRESSION = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")


def blocks():
    """Return the YAML blocks of the page: the steps of a workflow, and a GitLab job."""
    return re.findall(r"```yaml\n(.*?)```", (CI / "README.md").read_text(), re.DOTALL)


def workflow():
    steps = yaml.safe_load(blocks()[0])["steps"]
    return {"on": "pull_request", "jobs": {"energy": {"runs-on": "self-hosted", "steps": steps}}}


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ("github-actions", yaml.safe_load((CI / "action.yml").read_text())),
        ("github-workflows", workflow()),
        ("gitlab-ci", yaml.safe_load((CI / "gitlab.yml").read_text())),
        ("gitlab-ci", yaml.safe_load(blocks()[1])),
    ],
    ids=["action", "workflow of the page", "template", "job of the page"],
)
def test_ci_files_are_valid_by_the_schema_of_their_service(schema, document, tmp_path):
    path = tmp_path / "file.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{schema}",
        str(path),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_ci_example_of_github_gives_the_inputs_of_the_action():
    action = yaml.safe_load((CI / "action.yml").read_text())
    (step,) = (
        step for step in workflow()["jobs"]["energy"]["steps"] if "deploy/ci@" in step["uses"]
    )
    required = {name for name, one in action["inputs"].items() if one.get("required")}
    assert required <= step["with"].keys() <= action["inputs"].keys()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with daemon(tmp_path_factory.mktemp("exporter"), "--simulate", "1xH200") as started:
        yield {
            "PATH": path,
            "HOME": "/nonexistent",
            "WATTLINE_EXPORTER": started.url,
            "WATTLINE_SOURCE": started.url,
        }


def test_github_step_fails_for_a_regression_and_writes_the_page(environment, tmp_path):
    """The step as the runner of GitHub calls it: inputs in place of their expressions, and `sh -e
    FILE`.
    """
    action = yaml.safe_load((CI / "action.yml").read_text())
    given = {"baseline": "sleep 0.4", "candidate": "sleep 1.6", "repeats": "4"}
    inputs = {
        name: given.get(name, one.get("default", "")) for name, one in action["inputs"].items()
    }
    (step,) = action["runs"]["steps"]
    own = {
        name: EXPRESSION.sub(lambda found: inputs[found[1]], text)
        for name, text in step["env"].items()
    }
    script, page = tmp_path / "step.sh", tmp_path / "page.md"
    script.write_text(step["run"])
    own |= {"GITHUB_ACTION_PATH": str(CI), "GITHUB_STEP_SUMMARY": str(page)}

    done = subprocess.run(
        ["sh", "-e", script], env=environment | own, capture_output=True, text=True, check=False
    )

    assert done.returncode == 3, done.stdout + done.stderr
    assert "### Energy gate: regression" in page.read_text()


def test_gitlab_job_calls_the_script_and_allows_no_verdict():
    job = yaml.safe_load((CI / "gitlab.yml").read_text())[".energy-gate"]
    assert job["script"][0].startswith(
        'deploy/ci/gate.sh "$BASELINE" "$CANDIDATE" --max-increase "$MAX_INCREASE"'
    )
    assert job["allow_failure"] == {"exit_codes": 4}
