"""What stdout may get."""

from enum import StrEnum


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
