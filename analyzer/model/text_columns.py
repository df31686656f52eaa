"""Categorical text columns of tidy frames, their columns as arrays, and joined frames."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

_Remembered = TypeVar("_Remembered")
_ALL = slice(None)
_TEXTS: dict[int, tuple[object, tuple[str, ...], dict[str, int]]] = {}
_MOST_TYPES = 512
_ABSENT = -2
"""Code that no row has."""


def text_column(texts: list[str], lengths: list[int]) -> pd.Categorical:
    """Return a column with one text per series; the empty text is always a category."""
    known = tuple(sorted({"", *texts}))
    places = {text: place for place, text in enumerate(known)}
    return _from_codes(np.repeat(np.array([places[text] for text in texts], dtype=np.int32), lengths), known)


def _joined_column(columns: Sequence[pd.Series | None], lengths: list[int]) -> pd.Categorical:
    """Return one column of the columns of several frames; None is a column of empty texts."""
    parts = [None if column is None else _category_values(column) for column in columns]
    of_part = [("",) if part is None else _texts(part)[0] for part in parts]
    known = tuple(sorted({"", *(text for texts in of_part for text in texts)}))
    places = {text: place for place, text in enumerate(known)}
    # the last entry is for code -1, a missing label, which is the empty text
    tables = [np.array([*(places[text] for text in texts), places[""]], dtype=np.int32) for texts in of_part]
    codes = [
        table[np.zeros(length, dtype=np.int8) if part is None else part.codes]
        for table, part, length in zip(tables, parts, lengths, strict=True)
    ]
    return _from_codes(np.concatenate(codes), known)


@dataclass(frozen=True, slots=True, eq=False)
class TextCodes:
    """Text column: `texts`, and for each row the position of its text, -1 if it has none."""

    codes: npt.NDArray[np.integer[Any]]
    texts: tuple[str, ...]
    positions: Mapping[str, int]

    def at(self, rows: npt.NDArray[np.intp]) -> list[str]:
        return [self.texts[code] if code >= 0 else "" for code in self.codes[rows].tolist()]

    def equal(self, text: str, rows: npt.NDArray[np.intp] | slice = _ALL) -> npt.NDArray[np.bool_]:
        """Return which rows have the text; a missing text is empty."""
        codes = self.codes[rows]
        same: npt.NDArray[np.bool_] = codes == self.positions.get(text, _ABSENT)
        return same if text else same | (codes < 0)


class TextCodesByName(Mapping[str, TextCodes]):
    """Text columns of a frame, which must exist while they are looked up; each is looked up once."""

    def __init__(self, frame: pd.DataFrame, names: Sequence[str]) -> None:
        self._frame = weakref.ref(frame)
        self._known: dict[str, TextCodes | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> TextCodes:
        found = self._known[name]
        if found is None:
            frame = self._frame()
            if frame is None:
                raise ReferenceError(name)
            found = self._known[name] = _text_codes(frame[name])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _text_codes(column: pd.Series) -> TextCodes:
    values = _category_values(column)
    texts, positions = _texts(values)
    return TextCodes(values.codes, texts, positions)


def _category_values(column: pd.Series) -> pd.Categorical:
    values = column.array
    return cast("pd.Categorical", values if hasattr(values, "categories") else column.astype("category").array)


def _texts(values: pd.Categorical) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the texts and their positions, which columns of one type share."""
    key = id(values.dtype)
    known = _TEXTS.get(key)
    if known is None or known[0] is not values.dtype:
        if len(_TEXTS) >= _MOST_TYPES:
            _TEXTS.clear()
        texts = tuple(map(str, values.categories))
        known = _TEXTS[key] = values.dtype, texts, {text: code for code, text in enumerate(texts)}
    return known[1:]


class FrameMemory(Generic[_Remembered]):
    """Values computed from a frame, kept as long as the frame exists; frames are never changed."""

    def __init__(self, compute: Callable[[pd.DataFrame], _Remembered]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[weakref.ref[pd.DataFrame], _Remembered]] = {}

    def __call__(self, frame: pd.DataFrame) -> _Remembered:
        key = id(frame)
        found = self._known.get(key)
        if found is None:
            found = weakref.ref(frame, lambda _: self._known.pop(key, None)), self._compute(frame)
            self._known[key] = found
        return found[1]


def _categories(column: pd.Categorical) -> npt.NDArray[np.object_]:
    return np.asarray(column.categories, dtype=object)


def _from_codes(codes: npt.NDArray[np.int32], known: tuple[str, ...]) -> pd.Categorical:
    import pandas as pd

    narrow = np.int8 if len(known) < 128 else np.int32
    return pd.Categorical.from_codes(codes.astype(narrow), dtype=_dtype(known))


@lru_cache(maxsize=_MOST_TYPES)
def _dtype(known: tuple[str, ...]) -> pd.CategoricalDtype:
    """Return the shared type of columns with these texts; to construct it takes longer than a column."""
    import pandas as pd

    return pd.CategoricalDtype(pd.Index(known, dtype="str"))


def join_frames(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one tidy frame; `pandas.concat` would turn its text columns into objects."""
    import pandas as pd

    every = list(frames)
    if len(every) == 1:
        return every[0].reset_index(drop=True)
    parts = [part for part in every if len(part)] or every[:1]
    texts = sorted({name for part in parts for name in part.columns} - {"t", "value", "metric", "instance"})
    columns: dict[str, object] = {
        name: np.concatenate([part[name].to_numpy(dtype=np.float64) for part in parts]) for name in ("t", "value")
    }
    for name in ("metric", "instance", *texts):
        columns[name] = _joined_column([part.get(name) for part in parts], [len(part) for part in parts])
    return pd.DataFrame(columns)
