"""
Logging to Nomad: one JSON object per line on standard error, which its agent takes into its own log. Three of the keys
must be strings, or Nomad's agent crashes; nobody reads any more once the agent that started us is gone.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType

_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        try:
            sys.stderr.write(line(record.levelname, message, record.name, record.created) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def line(level: str, message: str, module: str, at: float) -> str:
    """*at* is seconds since 1970; the six digits of its fraction are Nomad's condition for the level."""
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")
    name = _LEVELS.get(level, level.lower())
    return json.dumps({"@level": name, "@message": message, "@module": module, "@timestamp": stamp})


def set_up() -> None:
    """Everything to standard error, also what nobody has caught."""
    logging.basicConfig(handlers=[_Lines()], level=logging.INFO, force=True)
    sys.excepthook = _uncaught


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("astra_driver").critical("the plugin ends: %s", error, exc_info=(kind, error, trace))
