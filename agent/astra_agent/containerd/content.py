"""
Blobs in containerd's content store: written once, checked by their digest, gone on with where they broke off.

What was received of a blob stays, under the lease that it was written with, when the agent or containerd dies in the
middle; the next write of the same digest goes on there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from google.protobuf.field_mask_pb2 import FieldMask

from astra_agent.containerd.client import Client, Conversation
from astra_agent.containerd.oci import Descriptor
from astra_agent.containerd.proto import content_pb2
from astra_agent.containerd.services import CONTENT_ABORT, CONTENT_INFO, CONTENT_READ, CONTENT_UPDATE, CONTENT_WRITE
from astra_agent.errors import AstraError, Conflict, DeadlineExceeded, HostFault, NotFound, Unavailable

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1024 * 1024
_ANSWER_TIMEOUT_S = 60.0
"""For one piece, on a disk that is very busy."""
_READ_TIMEOUT_S = 60.0
_TRIES = 6
"""While containerd is away: it is back within a second or two, these last for eight."""
_CORRUPTED_TRIES = 3
_BACKOFF_FIRST_S = 0.25

Talk = Conversation[content_pb2.WriteContentRequest, content_pb2.WriteContentResponse]


class Source(Protocol):
    """Where a blob's bytes come from: the rest of *descriptor* from *offset* on, exactly to its end."""

    def __call__(self, descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]: ...


class _StoreAwayError(Exception):
    """containerd, not the source, stopped answering in the middle."""


class _CorruptedError(Exception):
    """All bytes came, and they are others than the digest says."""


class Content:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._writing: dict[str, asyncio.Lock] = {}

    async def has(self, digest: str) -> bool:
        try:
            await self._client.call(CONTENT_INFO, content_pb2.InfoRequest(digest=digest))
        except NotFound:
            return False
        return True

    async def read(self, digest: str, largest_bytes: int) -> bytes:
        """Raises: NotFound; HostFault when it is larger than that."""
        blob = b""
        request = content_pb2.ReadContentRequest(digest=digest, size=largest_bytes + 1)
        async for answer in self._client.download(CONTENT_READ, request, timeout_s=_READ_TIMEOUT_S):
            blob += answer.data
        if len(blob) > largest_bytes:
            raise HostFault(f"containerd has {digest} with more than {largest_bytes} bytes")
        return blob

    async def write(
        self,
        descriptor: Descriptor,
        source: Source,
        *,
        lease: str,
        labels: Mapping[str, str],
        received: Callable[[int], None] = lambda _: None,
    ) -> None:
        """
        Have the blob in the store, with *labels*, kept by *lease*. At once when it is there already; two writers of one
        blob take turns. Cancelled, it keeps what it has.

        Args:
            received: Is told of each number of bytes; together they are the size. Negative when some must come again.
        Raises:
            HostFault: The disk is full, or containerd fails.
            Unavailable: containerd does not come back; or the bytes stay others than the digest says.
            Whatever *source* raises.
        """
        async with self._turn(descriptor.digest):
            counted = 0

            def count(size_bytes: int) -> None:
                nonlocal counted
                counted += size_bytes
                received(size_bytes)

            for attempt in range(1, _TRIES + 1):
                try:
                    await self._write_once(descriptor, source, lease, labels, count)
                except Conflict:
                    await self._label(descriptor.digest, labels)
                except (_StoreAwayError, _CorruptedError) as error:
                    _log.warning("blob_again digest=%s attempt=%d reason=%s", descriptor.digest, attempt, error)
                    if attempt == (_CORRUPTED_TRIES if isinstance(error, _CorruptedError) else _TRIES):
                        raise Unavailable(str(error)) from error
                    count(-counted)
                    await asyncio.sleep(_BACKOFF_FIRST_S * 2 ** (attempt - 1))
                    continue
                count(descriptor.size - counted)
                return

    async def _write_once(
        self,
        descriptor: Descriptor,
        source: Source,
        lease: str,
        labels: Mapping[str, str],
        count: Callable[[int], None],
    ) -> None:
        """Raises: Conflict when the blob is there; _StoreAwayError; _CorruptedError, with nothing left of what came."""
        write = content_pb2.WriteContentRequest
        identity = write(ref=descriptor.digest, total=descriptor.size, expected=descriptor.digest)
        async with self._client.conversation(CONTENT_WRITE, timeout_s=None, lease=lease) as talk:
            offset = (await _ask(talk, identity, action=content_pb2.STAT)).offset
            count(offset)
            async with aclosing(_pieces(source(descriptor, offset))) as pieces:
                async for piece in pieces:
                    await _ask(talk, identity, action=content_pb2.WRITE, offset=offset, data=piece)
                    offset += len(piece)
                    count(len(piece))
            found = (await _ask(talk, identity, action=content_pb2.STAT)).digest
            if found == descriptor.digest:
                await _ask(talk, identity, action=content_pb2.COMMIT, offset=offset, labels=labels)
                return
        # Only after the stream has ended does containerd let go of what it received.
        await self._throw_away(descriptor.digest)
        raise _CorruptedError(f"what came for {descriptor.digest} is corrupted: its digest is {found}")

    async def _throw_away(self, ref: str) -> None:
        """containerd may still be closing what it received, and refuses meanwhile. What stays is found corrupted."""
        for attempt in range(_TRIES):
            try:
                await self._client.call(CONTENT_ABORT, content_pb2.AbortRequest(ref=ref))
            except NotFound:
                return
            except (Unavailable, HostFault):
                await asyncio.sleep(_BACKOFF_FIRST_S / 8 * 2**attempt)
            else:
                return

    async def _label(self, digest: str, labels: Mapping[str, str]) -> None:
        if labels:
            info = content_pb2.Info(digest=digest, labels=labels)
            mask = FieldMask(paths=[f"labels.{label}" for label in labels])
            await self._client.call(CONTENT_UPDATE, content_pb2.UpdateRequest(info=info, update_mask=mask))

    @asynccontextmanager
    async def _turn(self, digest: str) -> AsyncIterator[None]:
        lock = self._writing.setdefault(digest, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._writing.pop(digest, None)


async def _ask(
    talk: Talk, identity: content_pb2.WriteContentRequest, **fields: object
) -> content_pb2.WriteContentResponse:
    request = content_pb2.WriteContentRequest(**fields)  # type: ignore[arg-type]  # fields of the message, by name
    request.MergeFrom(identity)
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await talk.ask(request)
    except (Unavailable, DeadlineExceeded) as error:
        # Also while another writer, of an agent that has just died, still holds this blob.
        raise _StoreAwayError(str(error)) from error
    except TimeoutError as error:
        raise _StoreAwayError(f"containerd took no data within {_ANSWER_TIMEOUT_S:g} s") from error
    except AstraError as error:
        raise_disk_full(error)
        raise


async def _pieces(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of one size, the last one shorter."""
    async with aclosing(chunks):
        buffer = bytearray()
        async for chunk in chunks:
            buffer += chunk
            while len(buffer) >= _PIECE_BYTES:
                yield bytes(buffer[:_PIECE_BYTES])
                del buffer[:_PIECE_BYTES]
        if buffer:
            yield bytes(buffer)


def raise_disk_full(error: AstraError) -> None:
    """
    Does nothing unless *error* says that a disk is full; containerd has no code for that, the kernel has one text.

    Raises:
        HostFault: It is; with what to do.
    """
    text = str(error).lower()
    if "no space left on device" in text or "disk quota exceeded" in text:
        raise HostFault(
            f"the disk with containerd's folder is full: free space on it, or remove images ({error})"
        ) from error
