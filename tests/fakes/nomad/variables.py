"""The fake's variables: check-and-set, the limit on their size, and locks where the version has them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.fakes.nomad import recorded
from tests.fakes.nomad.cluster import FakeNomad

_LIMIT = 65536


@dataclass(slots=True)
class _Kept:
    items: dict[str, str]
    create_index: int
    modify_index: int
    lock: dict[str, str] | None = None
    expiry: asyncio.TimerHandle | None = None


class FakeVariables:
    """
    Attributes:
        lock_lasts_s: From the last renewal until another may have the lock; a real one waits for twice its TTL.
        refusing: Status and text that every write gets, while set; None: none.
        lost_answers: So many writes happen, and their answers are lost.
        deaf_after_loss: After a lost answer nobody is answered any more, as long as it is set.
        writes_left: So many more writes happen; then nobody is answered. None: no such limit.
    """

    def __init__(self, nomad: FakeNomad) -> None:
        self._nomad = nomad
        self._kept: dict[str, _Kept] = {}
        self.lock_lasts_s = 0.3
        self.refusing: tuple[int, str] | None = None
        self.lost_answers = 0
        self.deaf_after_loss = False
        self.writes_left: int | None = None
        self._deaf = False

    @property
    def paths(self) -> list[str]:
        return sorted(self._kept)

    def items(self, path: str) -> dict[str, str]:
        return self._kept[path].items

    def _has_locks(self) -> bool:
        return not self._nomad.version.startswith("1.6")

    async def list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found = [self._body(path, items=False) for path in self.paths if path.startswith(prefix)]
        return web.json_response(found, headers=self._index())

    async def get(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        self._answer(request)
        if path not in self._kept:
            status, text = recorded.refusal(self._nomad.version, "var-404")
            return web.Response(status=status, text=text, headers=self._index())
        return web.json_response(self._body(path), headers=self._index())

    async def put(self, request: web.Request) -> web.Response:
        path, asked = request.match_info["path"], await request.json()
        self._answer(request)
        if self.writes_left is not None:
            self.writes_left -= 1
        if self.refusing is not None:
            status, text = self.refusing
            return web.Response(status=status, text=text)
        if self._has_locks():
            for operation in ("lock-acquire", "lock-renew", "lock-release"):
                if operation in request.query:
                    return self._lock(operation, path, asked)
        items: dict[str, str] = asked["Items"]
        if sum(len(k.encode()) + len(v.encode()) for k, v in items.items()) > _LIMIT:
            status, text = recorded.refusal(self._nomad.version, "var-put-too-large")
            return web.Response(status=status, text=text)
        known = self._kept.get(path)
        if "cas" in request.query and int(request.query["cas"]) != (known.modify_index if known else 0):
            return self._conflict(path)
        self._write(path, items)
        if self.lost_answers:
            self.lost_answers -= 1
            self._deaf = self.deaf_after_loss
            _hang_up(request)
        return web.json_response(self._body(path), headers=self._index())

    async def delete(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        known = self._kept.get(path)
        if "cas" in request.query and int(request.query["cas"]) != (known.modify_index if known else 0):
            return self._conflict(path)
        if known is not None:
            del self._kept[path]
            self._nomad.bump()
        return web.Response(status=204, headers=self._index())

    # Locks -----------------------------------------------------------------------------------------------------------

    def expire_locks(self) -> None:
        for kept in self._kept.values():
            self._drop_lock(kept)

    def _lock(self, operation: str, path: str, asked: dict[str, Any]) -> web.Response:
        known = self._kept.get(path)
        lock = known.lock if known is not None else None
        given = (asked.get("Lock") or {}).get("ID", "")
        if operation == "lock-acquire":
            if lock is not None and lock["ID"] != given:
                return self._refused("lock-acquire-conflict")
            self._write(path, asked["Items"])
            known = self._kept[path]
            known.lock = lock or {"ID": str(uuid.uuid4()), **{k: asked["Lock"][k] for k in ("TTL", "LockDelay")}}
        elif lock is None or known is None:
            return self._refused("lock-renew-lost")
        elif lock["ID"] != given:
            return self._refused("lock-renew-wrong-id")
        if operation == "lock-release":
            self._drop_lock(known)
            known.modify_index = self._nomad.bump()
            return web.json_response(self._body(path, items=False))
        self._set_timer(known)
        answer = self._body(path, items=operation == "lock-acquire") | {"Lock": known.lock}
        return web.json_response(answer)

    def _set_timer(self, kept: _Kept) -> None:
        if kept.expiry is not None:
            kept.expiry.cancel()
        kept.expiry = asyncio.get_running_loop().call_later(self.lock_lasts_s, self._drop_lock, kept)

    def _drop_lock(self, kept: _Kept) -> None:
        if kept.expiry is not None:
            kept.expiry.cancel()
        kept.lock = kept.expiry = None

    def _answer(self, request: web.Request) -> None:
        """Or not, when nobody is to be answered."""
        self._deaf = self._deaf and self.deaf_after_loss
        if self._deaf or self.writes_left == 0:
            _hang_up(request)
            raise web.HTTPServiceUnavailable

    # Answers ---------------------------------------------------------------------------------------------------------

    def _write(self, path: str, items: dict[str, str]) -> None:
        index = self._nomad.bump()
        known = self._kept.get(path)
        if known is None:
            self._kept[path] = _Kept(items, index, index)
        else:
            known.items, known.modify_index = items, index

    def _body(self, path: str, *, items: bool = True) -> dict[str, Any]:
        kept = self._kept[path]
        body: dict[str, Any] = recorded.body(self._nomad.version, "var-get") | {
            "Path": path, "CreateIndex": kept.create_index, "ModifyIndex": kept.modify_index, "Items": kept.items,
        }  # fmt: skip
        if not items:
            del body["Items"]
        return body

    def _conflict(self, path: str) -> web.Response:
        if path in self._kept:
            return web.json_response(self._body(path), status=409)
        return self._refused("var-put-cas-conflict-missing")

    def _refused(self, name: str) -> web.Response:
        status, text = recorded.refusal(self._nomad.version, name)
        return web.Response(status=status, text=text)

    def _index(self) -> dict[str, str]:
        return {"X-Nomad-Index": str(self._nomad.index)}


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()
