"""Manual pages, checked by groff."""

import shutil
import subprocess

import pytest

from wattline.cli import manual


@pytest.fixture(scope="module")
def pages():
    return manual.pages()


def test_pages_are_the_same_each_time(pages):
    assert manual.pages() == pages


def test_pages_name_options_with_their_values(pages):
    assert "\n\\fB\\-\\-run\\-id\\fR \\fIID\\fR\n" in pages["wattline-report.1"]
    assert {
        "wattline.1",
        "wattline-run.1",
        "wattline-caps-show.1",
        "wattline-serve.1",
    } <= pages.keys()


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_pages_have_no_warnings(pages):
    for name, text in pages.items():
        done = subprocess.run(
            ["groff", "-k", "-man", "-Tutf8", "-ww", "-z"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", name


def test_write_pages_creates_the_folder(pages, tmp_path):
    manual.write_pages(str(tmp_path / "share" / "man1"))

    assert {
        path.name: path.read_text() for path in (tmp_path / "share" / "man1").iterdir()
    } == pages
