"""An agent as an engine sees it: its unix socket, with real HTTP, and slots that are nothing but names."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from astra_agent.wire import SlotRequest


class FakeAgentSocket:
    """
    Attributes:
        slots: What it has, by slot.
        finished: Slots that were ended, with code and reason.
        lingering: Slots whose processes do not end until the test takes them out.
        refusing: A sentence while every PUT is refused with it (HTTP 400).
        puts: Every PUT that was taken, in order: slots.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slots: dict[str, SlotRequest] = {}
        self.finished: dict[str, tuple[int, str]] = {}
        self.lingering: set[str] = set()
        self.refusing: str | None = None
        self.puts: list[str] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_put("/v1/slots/{slot}", self._put)
        app.router.add_get("/v1/slots/{slot}", self._get)
        app.router.add_delete("/v1/slots/{slot}", self._delete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        self.path.unlink(missing_ok=True)
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        """Nobody answers any more; what it has stays. Idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def is_up(self) -> bool:
        return self._runner is not None

    def finish(self, slot: str, code: int, reason: str) -> None:
        """It ends, at once unless it lingers."""
        self.finished.setdefault(slot, (code, reason))
        if slot not in self.lingering and self.slots.pop(slot, None) is not None:
            self.on_finish(slot)

    def on_put(self, slot: str, request: SlotRequest) -> None:
        """For a fake that does more."""

    def on_finish(self, slot: str) -> None:
        """Nothing of the slot is left."""

    async def _put(self, request: web.Request) -> web.Response:
        slot = request.match_info["slot"]
        asked = SlotRequest.model_validate_json(await request.read())
        if self.refusing is not None:
            return _refusal(400, self.refusing)
        if slot in self.finished or self.slots.get(slot, asked) != asked:
            return _refusal(409, f"slot {slot} is another one, or was finished")
        known = slot in self.slots
        self.slots[slot] = asked
        self.puts.append(slot)
        self.on_put(slot, asked)
        return web.json_response({}, status=200 if known else 201)

    async def _get(self, request: web.Request) -> web.Response:
        slot = request.match_info["slot"]
        if slot in self.finished and slot not in self.lingering:
            self.slots.pop(slot, None)
            self.on_finish(slot)
        return web.json_response({}) if slot in self.slots else _refusal(404, f"no slot {slot}")

    async def _delete(self, request: web.Request) -> web.Response:
        slot = request.match_info["slot"]
        self.finished.setdefault(slot, (int(request.query["code"]), request.query["reason"]))
        return web.json_response({}, status=202)


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "field": None, "code": "Refused"}}, status=status)
