"""Templates of the pages: a name that is not passed is an error, not an empty text."""

import pytest
from jinja2 import UndefinedError

from wattline_analyzer.report.html.page import page_template


@pytest.mark.parametrize("name", ["report.html.j2", "requests.html.j2"])
def test_template_missing_value_is_an_error(name):
    with pytest.raises(UndefinedError, match="is undefined"):
        page_template(name).render()
