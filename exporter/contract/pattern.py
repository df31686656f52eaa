"""Regular expressions as Prometheus understands them, in a time that grows with the text and never explodes.

Python's `re` takes for ever on `(a+)+b`, and whoever may ask for the history may send that. pydantic brings the regular
expressions of Rust, which are RE2's but for details.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

MOST_CHARACTERS = 10_000


class PatternError(ValueError):
    """The text says what is not understood."""


class Pattern:
    """Raises PatternError for what is none. It is kept by who uses it: one may take megabytes."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise PatternError(f"it has more than {MOST_CHARACTERS} characters")
        try:
            for whole in (text, f"^(?s:{text})$"):  # alone too: `a)(b` is none, whatever stands around it
                self._whole = TypeAdapter(
                    Annotated[str, StringConstraints(pattern=whole)], config=ConfigDict(regex_engine="rust-regex")
                )
        except SchemaError as error:
            raise PatternError(str(error).strip().splitlines()[-1].strip()) from error

    def matches(self, text: str) -> bool:
        """Whether the whole text is of this pattern."""
        try:
            self._whole.validate_python(text)
        except ValidationError:
            return False
        return True
