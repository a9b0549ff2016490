"""
The one set of sentences for what goes wrong between this machine and a registry.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import Callable

import aiohttp

from astra_agent.containerd.credentials import Found
from astra_agent.containerd.reference import Reference
from astra_agent.containerd.registry_hosts import Endpoint, RegistryConfig
from astra_agent.errors import AstraError, HostFault, InvalidRequest, Unavailable

TRYING_AGAIN = ", trying again"
"""The end of what is said of a registry while it is waited for."""


class TransientError(Exception):
    """One try failed in a way that another one may mend. The message says how, without a subject."""

    def __init__(self, why: str, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Patience:
    """Counts the tries of one request, and waits longer after each; progress makes it start anew."""

    def __init__(self, endpoint: Endpoint, wanted: str, config: RegistryConfig, waits: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._wanted = wanted
        self._config = config
        self._waits = waits
        self.progress()

    def progress(self) -> None:
        self._tries = 0
        self._since = time.monotonic()

    async def failed(self, error: TransientError) -> None:
        """
        Wait, before the next try, and say so.

        Raises:
            Unavailable: That was the last one. A mirror gets one.
        """
        self._tries += 1
        if self._tries >= self._config.tries or self._endpoint.is_mirror:
            raise Unavailable(self._sentence(error)) from error
        backoff_s = min(self._config.backoff_first_s * 2 ** (self._tries - 1), self._config.backoff_longest_s)
        self._waits(f"registry {self._endpoint.registry} does not answer ({error}){TRYING_AGAIN}")
        # A registry that names a longer time (429) is believed, within reason.
        await asyncio.sleep(max(backoff_s, min(error.retry_after_s, 6 * self._config.backoff_longest_s)))

    def _sentence(self, error: TransientError) -> str:
        times = "once" if self._tries == 1 else f"{self._tries} times in {time.monotonic() - self._since:.0f} s"
        return (
            f"registry {self._endpoint.registry} does not answer: asked {times} for {self._wanted}, "
            f"{'and' if self._tries == 1 else 'the last time'}: {error}"
        )


def no_connection(error: aiohttp.ClientError | TimeoutError, endpoint: Endpoint, config: RegistryConfig) -> Exception:
    """A `TransientError`, or what no second try can mend: the two ends disagree about TLS."""
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        folder = config.certs_dirs[0] / endpoint.registry if config.certs_dirs else "the folder of its certificates"
        return HostFault(
            f"registry {endpoint.registry}: this machine does not trust its certificate ({cause.verify_message}); "
            f"put the certificate of its authority into {folder}/ca.crt"
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "HTTP_REQUEST",
    ):
        return HostFault(
            f"registry {endpoint.registry} speaks plain HTTP where TLS is expected: "
            f"name it in plain_http_registries of this machine's agent, or give it a certificate"
        )
    if isinstance(cause, ssl.SSLError):
        return HostFault(f"registry {endpoint.registry}: no TLS connection: {cause.reason or cause}")
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TransientError(f"silence for {config.read_timeout_s:g} s")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TransientError(f"no connection within {config.connect_timeout_s:g} s")
    if isinstance(error, TimeoutError):
        return TransientError("the answer did not end in time")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return TransientError(f'no address is known for "{error.host}"')
    if isinstance(error, aiohttp.ClientConnectorError):
        # Where several addresses were tried, the library's text is about all of them, and has no number.
        return TransientError(os.strerror(error.errno).lower() if error.errno else f"no connection: {error.strerror}")
    return TransientError("the connection broke")


def refused(status: int, endpoint: Endpoint, reference: Reference, image: str, found: Found) -> AstraError:
    """For 401 and 403, after everything that could be shown was shown."""
    host = endpoint.registry
    if found.credentials is not None:
        return InvalidRequest(
            f'registry {host} refuses the credentials of {found.credentials.source} for image "{image}" '
            f"(HTTP {status}): correct them, or have them let into {reference.repository}",
            "registry_auth",
        )
    notes = f" ({'; '.join(found.notes)})" if found.notes else ""
    return InvalidRequest(
        f'registry {host} gives image "{image}" to nobody without credentials{notes}: '
        f"put them into a Docker configuration of the machine, or into the auth block of a task of Nomad; "
        f"or there is no such image, which some registries do not tell apart",
        "registry_auth",
    )


def missing(codes: frozenset[str], endpoint: Endpoint, reference: Reference, image: str) -> InvalidRequest:
    """For 404 on a manifest; *codes* are the registry's own words for why."""
    what = "digest" if reference.digest else "tag"
    if "NAME_UNKNOWN" in codes:
        why = f'registry {endpoint.registry} has no "{reference.repository}"'
    else:
        why = f'registry {endpoint.registry} has no {what} "{reference.version}" of "{reference.repository}"'
    return InvalidRequest(f'image "{image}" does not exist: {why}', "image")


def unexpected(status: int, body: bytes, endpoint: Endpoint, wanted: str) -> AstraError:
    """For any other answer that is final."""
    if status == 400 and b"HTTP request to an HTTPS server" in body:
        return HostFault(
            f"registry {endpoint.registry} speaks TLS where plain HTTP is expected: put the certificate of its "
            f"authority into a folder of certificates, or take it out of plain_http_registries"
        )
    said = re.sub(r"\s+", " ", body[:200].decode(errors="replace")).strip()
    return Unavailable(
        f"registry {endpoint.registry} answers HTTP {status} when asked for {wanted}: {said or 'nothing'}"
    )
