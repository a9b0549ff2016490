"""
Documents of any size at paths, each changed at one moment: a variable that is written by check-and-set, after the parts
it needs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from astra_agent.errors import Conflict, InvalidRequest, Unavailable
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.documents import WRITTEN, Damaged, decode, encode, is_part, part_path, part_paths


@dataclass(frozen=True, slots=True)
class Kept:
    """
    A document as it was read or written.

    Attributes:
        index: For the next check-and-set; 0: there is none at this path.
        parts: Paths of its parts.
    """

    text: str
    index: int
    parts: tuple[str, ...] = ()


NONE = Kept("", 0)


class Shelf:
    """Every method raises `Unavailable` when Nomad can't be asked; a write that raises it may have happened."""

    def __init__(self, api: NomadApi) -> None:
        self._api = api

    async def paths(self, prefix: str) -> tuple[str, ...]:
        """Of documents, without their parts, sorted."""
        return tuple(v.path for v in await self._api.variables(prefix) if not is_part(v.path))

    async def read(self, path: str) -> Kept:
        """
        `NONE` when there is nothing.

        Raises:
            InvalidRequest: What is there is no document.
        """
        for _ in range(_TRIES):
            main = await self._api.variable(path)
            if main.modify_index == 0:
                return NONE
            try:
                found = part_paths(path, main.items)
                parts = [await self._api.variable(part) for part in found]
                if all(part.modify_index for part in parts):
                    text = decode(path, main.items, [part.items for part in parts])
                    return Kept(text, main.modify_index, found)
            except Damaged as error:
                raise InvalidRequest(f"{error}: it was written by another version, or by hand") from error
            # A part is missing: the document was written anew while we read, so the main one is another now.
        raise InvalidRequest(f"variable {path} lacks a part: it was deleted by hand")

    async def write(self, path: str, text: str, before: Kept, written: str) -> Kept:
        """
        Put *text* in the place of *before*. Idempotent by *written*.

        Args:
            written: A name that no writing of another text has.

        Raises:
            Conflict: It is another one by now; nothing has changed.
        """
        items = encode(text, written)
        parts = tuple(part_path(path, written, i) for i in range(len(items.parts)))
        for part, content in zip(parts, items.parts, strict=True):
            with contextlib.suppress(Conflict):  # it is there, from a try whose answer was lost
                await self._api.put_variable(part, content, cas=0)
        try:
            main = await self._api.put_variable(path, items.main, cas=before.index)
        except Conflict:
            main = await self._api.variable(path)
            if main.items.get(WRITTEN) != written:
                await self._sweep(parts)
                raise
        await self._sweep(before.parts)
        return Kept(text, main.modify_index, parts)

    async def delete(self, path: str, before: Kept) -> None:
        """Raises: Conflict, when it is another one by now; one that is gone is fine."""
        try:
            await self._api.delete_variable(path, cas=before.index)
        except Conflict:
            if (await self._api.variable(path)).modify_index:
                raise
        await self._sweep(before.parts)

    async def tidy(self, prefix: str) -> None:
        """Remove parts that no document has: of writings that were cut short."""
        parts = [v.path for v in await self._api.variables(prefix) if is_part(v.path)]
        for main in sorted({part.rpartition("/")[0] for part in parts}):
            found = await self._api.variable(main)
            used = part_paths(main, found.items) if found.modify_index else ()
            await self._sweep(tuple(part for part in parts if part.rpartition("/")[0] == main and part not in used))

    async def _sweep(self, parts: tuple[str, ...]) -> None:
        """Remove what nobody needs. What is left in spite of that is removed by the next `tidy`."""
        with contextlib.suppress(Conflict, Unavailable):
            for path in parts:
                found = await self._api.variable(path)
                if found.modify_index:
                    await self._api.delete_variable(path, cas=found.modify_index)


_TRIES = 5
