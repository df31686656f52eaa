"""Source of series that a test holds."""

from wattline_analyzer.core.facts import newest_facts
from wattline_analyzer.core.sample_table import table_of


class SeriesSource:
    """Source with the methods of all sources; a test adds `parts` only."""

    name = "memory"

    def parts(self, metrics, matchers, start_s, end_s):
        raise NotImplementedError

    def facts(self, metrics, matchers, start_s, end_s):
        return newest_facts(metrics, self.parts(metrics, matchers, start_s, end_s))

    def fetch(self, metrics, matchers, start_s, end_s):
        return table_of(
            [one for part in self.parts(metrics, matchers, start_s, end_s) for one in part]
        )

    def prefetch(self, metrics, matchers, start_s, end_s):
        """Request nothing in advance."""

    def close(self):
        """Close nothing."""
