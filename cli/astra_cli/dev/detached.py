"""
The supervisor of `astra dev --detach`: a process of its own, without a terminal.

It reads the plan from standard input, and writes to standard output what it does until the cluster is up, a line of
JSON each: `{"say": …}`, then `{"ready": …}` or `{"error": {"message", "code"}}`. After that it speaks to its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from astra_agent.errors import AstraError, handling
from astra_cli.dev.cluster import Cluster
from astra_cli.dev.plan import ClusterPlan, layout
from astra_cli.dev.supervisor import Supervisor, until_stopped


class Teller:
    """Tells who waits for the start, and the log."""

    def __init__(self) -> None:
        self.waiting = True

    def tell(self, document: dict[str, Any]) -> None:
        sys.stderr.write(
            f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(map(str, document.values()))}\n"
        )
        sys.stderr.flush()
        if self.waiting:
            with suppress(OSError):  # whoever waited has gone; the cluster is wanted all the same
                sys.stdout.write(json.dumps(document) + "\n")
                sys.stdout.flush()

    def say(self, sentence: str) -> None:
        self.tell({"say": sentence})

    async def serve(self, cluster: Cluster) -> None:
        self.tell({"ready": f"http://127.0.0.1:{cluster.port}"})
        self.hang_up()
        await until_stopped()

    def hang_up(self) -> None:
        self.waiting = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main() -> int:
    request = json.loads(sys.stdin.read())
    teller = Teller()
    try:
        plan, where = ClusterPlan.from_json(request["plan"]), layout(Path(request["state"]))
        asyncio.run(_run(plan, where.state, int(request["port"]), teller))
    except AstraError as error:
        teller.tell({"error": {"message": str(error), "code": type(error).__name__}})
        return handling(error).exit
    return 0


async def _run(plan: ClusterPlan, state: Path, port: int, teller: Teller) -> None:
    await Supervisor(plan, layout(state), teller.say, port).run(teller.serve)


if __name__ == "__main__":
    sys.exit(main())
