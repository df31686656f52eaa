"""Plans shown in the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import markdown
from tests.docs.reference import ROOT, markdown_files


def _is_plan(block):
    return block.language == "yaml" and re.search(r"^(runs|tenants):", block.text, re.MULTILINE)


PLANS = [block for page in markdown_files() for block in markdown.blocks(page) if _is_plan(block)]


def _page(block):
    return f"{block.page.relative_to(ROOT)}:{block.line}"


def test_shown_plans_are_found():
    pages = {block.page.name for block in PLANS}

    assert {"plans.md", "tenants.md", "placement.md", "mps.md", "migrate-multi-tenant.md"} <= pages


@pytest.mark.parametrize("block", PLANS, ids=_page)
def test_shown_plan_is_valid(block, tmp_path):
    (tmp_path / "plan.yaml").write_text(block.text)
    command = [str(Path(sys.executable).with_name("workloads")), "plan", "plan.yaml", "--dry-run"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    assert "workloads job" in ran.stdout
