"""How a source fails."""


class SourceError(Exception):
    """Nothing can be read, or not what was asked for. `remedy` is what to type or where to look."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy
