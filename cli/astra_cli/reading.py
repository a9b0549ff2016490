"""Files that a user names on the command line, read into documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_cli.runfile import parse

Json = dict[str, Any]


def read(path: Path) -> Json:
    """
    A JSON or YAML file.

    Raises:
        InvalidRequest: it can't be read, is neither JSON nor YAML, or holds no mapping.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidRequest(f"{path} can't be read: {why}; give the path of a JSON or YAML file") from error
    return parse(text, str(path))
