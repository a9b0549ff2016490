"""
The calls that python-nomad makes for us: jobs, one by one. It is synchronous, so each runs in a thread of its own pool.

Everything that needs an index, a wait, a lock or a stream is not in it, and goes through `transport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import nomad
import requests
from nomad.api.exceptions import BaseNomadException, TimeoutNomadException

from astra_agent.errors import Unavailable
from astra_gang.engines.nomad.refusals import Call, Denied, Need, refusal
from astra_gang.engines.nomad.transport import ANSWER_S, Transport

_T = TypeVar("_T")
_THREADS = 4


class Library:
    """
    A call whose caller is cancelled goes on in its thread, up to its bound: the caller looks what became of it.

    Every method raises as `transport.Transport.ask`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._access = transport.access
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="nomad")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def register(self, document: dict[str, Any], what: str, need: Need) -> Any:
        """*document*: with `Job`, and what else the request has."""
        namespace = document["Job"]["Namespace"]
        return await self._do(lambda client: client.jobs.register_job(document), what, need, namespace)

    async def deregister(self, job: str, namespace: str, what: str, need: Need) -> Any:
        """Without purge: a purged job's allocations can't be watched any more."""
        return await self._do(
            lambda client: client.job.deregister_job(job, namespace=namespace, purge=False), what, need, namespace
        )

    async def job(self, job: str, namespace: str, what: str, need: Need) -> Any:
        return await self._do(lambda client: client.job.get_job(job, namespace=namespace), what, need, namespace)

    async def _do(self, call: Callable[[Any], _T], what: str, need: Need, namespace: str) -> _T:
        about = Call(what, need, namespace, self._access.called())
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._in_thread, call, about)
        except Denied as error:
            if (explained := await self._transport.explained(error, namespace)) is error:
                raise
            raise explained from error

    def _in_thread(self, call: Callable[[Any], _T], about: Call) -> _T:
        with requests.Session() as session:
            try:
                return call(self._client(session, about.namespace))
            except (BaseNomadException, TimeoutNomadException) as error:
                answer = getattr(error, "nomad_resp", None)
                if isinstance(answer, requests.Response):
                    raise refusal(about, answer.status_code, answer.text) from error
                raise Unavailable(f"Nomad does not answer at {self._access.address} ({answer or error})") from error
            except (requests.RequestException, ValueError) as error:
                raise Unavailable(f"Nomad does not answer at {self._access.address} ({error})") from error

    def _client(self, session: requests.Session, namespace: str) -> Any:
        """A new one for each call: the token may have changed, and a session must not be shared between threads."""
        session.trust_env = False
        access = self._access
        ca = str(access.ca_file) if access.ca_file else True
        cert = (str(access.cert_file), str(access.key_file)) if access.cert_file and access.key_file else ()
        return nomad.Nomad(
            address=access.address,
            namespace=namespace,
            token=access.token(),
            timeout=int(ANSWER_S),
            verify=ca,
            cert=cert,
            session=session,
        )
