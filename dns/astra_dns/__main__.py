"""`python -m astra_dns`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast


def main() -> int:
    # asyncio loads OpenSSL wherever there is one: 4 MiB, a fifth of this process, for connections that it never makes.
    cast("dict[str, ModuleType | None]", sys.modules)["ssl"] = None
    from astra_dns.main import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
