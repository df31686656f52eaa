"""Categorical text columns of tidy frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd


def text_column(texts: list[str], lengths: list[int]) -> pd.Categorical:
    """Return a column with one text per series; the empty text is always a category."""
    known = tuple(sorted({"", *texts}))
    places = {text: place for place, text in enumerate(known)}
    return _from_codes(np.repeat(np.array([places[text] for text in texts], dtype=np.int32), lengths), known)


def joined_column(columns: Sequence[pd.Series | None], lengths: list[int]) -> pd.Categorical:
    """Return one column of the columns of several frames; None is a column of empty texts."""
    parts = [None if column is None else cast("pd.Categorical", column.astype("category").array) for column in columns]
    of_part = [[""] if part is None else _categories(part).tolist() for part in parts]
    known = tuple(sorted({"", *(text for texts in of_part for text in texts)}))
    places = {text: place for place, text in enumerate(known)}
    # the last entry is for code -1, a missing label, which is the empty text
    tables = [np.array([*(places[text] for text in texts), places[""]], dtype=np.int32) for texts in of_part]
    codes = [
        table[np.zeros(length, dtype=np.int8) if part is None else part.codes]
        for table, part, length in zip(tables, parts, lengths, strict=True)
    ]
    return _from_codes(np.concatenate(codes), known)


def categorical(frame: pd.DataFrame, name: str) -> pd.Categorical:
    return cast("pd.Categorical", frame[name].array)


def texts_of(column: pd.Categorical, at: npt.NDArray[np.intp]) -> list[str]:
    """Return the texts in some rows of a column."""
    texts: list[str] = _categories(column)[column.codes[at]].tolist()
    return texts


def _categories(column: pd.Categorical) -> npt.NDArray[np.object_]:
    return np.asarray(column.categories, dtype=object)


def _from_codes(codes: npt.NDArray[np.int32], known: tuple[str, ...]) -> pd.Categorical:
    import pandas as pd

    narrow = np.int8 if len(known) < 128 else np.int32
    return pd.Categorical.from_codes(codes.astype(narrow), dtype=_dtype(known))


@lru_cache(maxsize=512)
def _dtype(known: tuple[str, ...]) -> pd.CategoricalDtype:
    """Return the shared type of columns with these texts; to construct it takes longer than a column."""
    import pandas as pd

    return pd.CategoricalDtype(pd.Index(known, dtype="str"))
