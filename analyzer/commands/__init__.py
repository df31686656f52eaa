"""Commands of the analyzer, one per module."""
