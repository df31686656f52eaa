"""Server-sent events out of bytes as they arrive: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

from __future__ import annotations

_LONGEST_EVENT_BYTES = 16 << 20


class Decoder:
    """Feed it a response's pieces, cut wherever the network cut them. One for each response."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False
        self._first = True
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completes. Raises ValueError for what is no text, or has no end."""
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        buffer = self._rest + piece
        lines = buffer.splitlines(keepends=True)
        self._after_return = self._after_return or buffer.endswith(b"\r")
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        if len(self._rest) + self._data_bytes > _LONGEST_EVENT_BYTES:
            raise ValueError(f"an event of more than {_LONGEST_EVENT_BYTES >> 20} MiB")
        return [event for line in lines if (event := self._take(line.rstrip(b"\r\n").decode())) is not None]

    def _take(self, line: str) -> str | None:
        """The data of the event that ends with this line."""
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line:
            data, self._data, self._data_bytes = self._data, [], 0
            return "\n".join(data) if data else None
        field, _, value = line.partition(":")
        if field in {"data", "error"}:  # llama.cpp has sent errors as a field of that name
            self._data.append(value.removeprefix(" "))
            self._data_bytes += len(line)
        return None
