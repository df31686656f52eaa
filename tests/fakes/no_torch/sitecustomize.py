"""Makes torch impossible to import: it takes two seconds, and a job then uses NumPy."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # as import statements interpret it
