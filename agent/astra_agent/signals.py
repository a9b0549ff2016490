"""Names of signals, as people and engines write them."""

from __future__ import annotations

import signal

from astra_agent.errors import InvalidRequest


def signal_number(name: str) -> int:
    """`SIGHUP`, `hup` or `1`. Raises: InvalidRequest."""
    text = name.strip().upper()
    if text.isdigit() and 0 < int(text) <= signal.SIGRTMAX:
        return int(text)
    try:
        return signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
    except KeyError:
        raise InvalidRequest(f'there is no signal "{name}"; expected a name such as SIGHUP', "signal") from None
