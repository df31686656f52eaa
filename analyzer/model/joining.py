"""Tidy frames one after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd


def joined(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """In one that is tidy, too: `pandas.concat` would make objects of its text columns."""
    every = list(frames)
    parts = [part for part in every if len(part)] or every[:1]
    texts = sorted({name for part in parts for name in part.columns} - {"t", "value", "metric", "instance"})
    columns: dict[str, object] = {
        name: np.concatenate([part[name].to_numpy(dtype=np.float64) for part in parts]) for name in ("t", "value")
    }
    for name in ("metric", "instance", *texts):
        columns[name] = _joined_column([part.get(name) for part in parts], parts)
    return pd.DataFrame(columns)


def _joined_column(columns: list[pd.Series | None], parts: list[pd.DataFrame]) -> pd.Categorical:
    made = [
        pd.Categorical(np.full(len(part), "")) if column is None else column.astype("category").array
        for column, part in zip(columns, parts, strict=True)
    ]
    known = sorted({"", *(str(text) for one in made for text in one.categories)})
    narrow = np.int8 if len(known) < 128 else np.int32
    places = {text: place for place, text in enumerate(known)}
    # the place at the end is that of code -1, which is none: a label that is missing is the empty text
    tables = [np.array([*(places[str(text)] for text in one.categories), places[""]]) for one in made]
    codes = np.concatenate([table[one.codes] for table, one in zip(tables, made, strict=True)])
    return pd.Categorical.from_codes(codes.astype(narrow), categories=pd.Index(known, dtype="str"))
