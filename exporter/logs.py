"""Log lines in logfmt or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time

from exporter.settings import LogFormat, LogLevel


class LogFormatter(logging.Formatter):
    """One line per record, in logfmt or JSON."""

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._json = log_format is LogFormat.json

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:
            message = f"{message} {self.formatException(record.exc_info)}"
        fields = {"time": moment, "level": record.levelname.lower(), "logger": record.name, "msg": message}
        if self._json:
            return json.dumps(fields)
        return (
            f"time={moment} level={fields['level']} logger={record.name} msg={json.dumps(message, ensure_ascii=False)}"
        )


def start_logging(level: LogLevel, log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(log_format))
    logging.basicConfig(level={"warn": "WARNING"}.get(level.value, level.value.upper()), handlers=[handler])
