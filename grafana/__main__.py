"""Writer of the dashboards' JSON: `python -m grafana`."""

from __future__ import annotations

from pathlib import Path

from grafana.board import as_json
from grafana.boards import BOARDS

FOLDER = Path(__file__).with_name("dashboards")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(as_json(board))


if __name__ == "__main__":
    main()
