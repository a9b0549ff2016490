"""
Where a registry is really asked: its mirrors, plain HTTP or TLS, whose certificates count, and through which proxy.

| kind of registry | is asked by |
|---|---|
| any other | HTTPS |
| in `plain_http_registries` | plain HTTP |
| on loopback, without a folder of certificates | plain HTTP |

A folder of certificates is `<certs_dir>/<host[:port]>/`, laid out as Docker's and containerd's: every `*.crt` is an
authority beside the system's, every `*.cert` with its `*.key` is ours to show.
"""

from __future__ import annotations

import ipaddress
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from yarl import URL

from astra_agent.containerd.reference import DOCKER_HUB
from astra_agent.errors import HostFault, InvalidRequest


def _docker_config() -> tuple[Path, ...]:
    return (Path.home() / ".docker" / "config.json",)


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """How this machine pulls. Durations in seconds."""

    plain_http_registries: tuple[str, ...] = ()
    """`host[:port]` of registries that speak plain HTTP, beside those on loopback."""
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By registry: URLs that are asked first, in this order, such as ``{"docker.io": ("https://mirror.lan",)}``."""
    certs_dirs: tuple[Path, ...] = (Path("/etc/containerd/certs.d"), Path("/etc/docker/certs.d"))
    docker_configs: tuple[Path, ...] = field(default_factory=_docker_config)
    """Files in the form of Docker's config.json, in the order in which credentials are looked for."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Longest silence in the middle of an answer."""
    tries: int = 6
    """Of a request that gets no answer, in a row without any progress."""
    backoff_first_s: float = 0.5
    """Before the second try; doubles, up to *backoff_longest_s*."""
    backoff_longest_s: float = 10.0
    helper_timeout_s: float = 15.0
    """Of a `docker-credential-*` program."""
    concurrent_layers: int = 4
    """Downloads at the same time, over all images of this machine."""

    def __post_init__(self) -> None:
        for registry, urls in self.mirrors.items():
            for url in urls:
                if URL(url).scheme not in ("http", "https") or not URL(url).host:
                    raise InvalidRequest(f'mirrors: "{url}" of {registry} is no URL such as "https://mirror.lan:5000"')
        if self.tries < 1 or self.concurrent_layers < 1:
            raise InvalidRequest("tries and concurrent_layers are 1 or more")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place where an image may be had."""

    base: URL
    """Up to and without `/v2`."""
    registry: str
    """`host[:port]` as people write it: in sentences, and to find credentials by."""
    is_mirror: bool


def endpoints(registry: str, config: RegistryConfig) -> tuple[Endpoint, ...]:
    """The mirrors of *registry* in their order, then itself."""
    mirrors = [URL(url) for url in config.mirrors.get(registry, ())]
    host = "registry-1.docker.io" if registry == DOCKER_HUB else registry
    scheme = "http" if speaks_plain_http(host, config) else "https"
    return (
        *(Endpoint(url, url.authority, is_mirror=True) for url in mirrors),
        Endpoint(URL(f"{scheme}://{host}"), registry, is_mirror=False),
    )


def speaks_plain_http(host: str, config: RegistryConfig) -> bool:
    if host in config.plain_http_registries:
        return True
    return is_loopback(URL(f"http://{host}").host or "") and not _certificate_folders(host, config)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(host: str, config: RegistryConfig) -> ssl.SSLContext:
    """
    For *host*, `host[:port]`: the system's authorities and those of its folders.

    Raises:
        HostFault: A file there is no certificate, or no key.
    """
    context = ssl.create_default_context()
    # As docker and containerd: authorities that were made years ago lack what Python insists on since 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for folder in _certificate_folders(host, config):
        for authority in sorted(folder.glob("*.crt")):
            _load(authority, partial(context.load_verify_locations, cafile=authority))
        for own in sorted(folder.glob("*.cert")):
            _load(own, partial(context.load_cert_chain, own, own.with_suffix(".key")))
    return context


def proxy_for(url: URL) -> URL | None:
    """By the environment's `https_proxy`, `http_proxy` and `no_proxy`; never for loopback."""
    host = url.host or ""
    if is_loopback(host) or urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    proxy = urllib.request.getproxies_environment().get(url.scheme)
    return URL(proxy) if proxy else None


def _certificate_folders(host: str, config: RegistryConfig) -> list[Path]:
    names = (host, DOCKER_HUB) if host == "registry-1.docker.io" else (host,)
    return [folder / name for folder in config.certs_dirs for name in names if (folder / name).is_dir()]


def _load(path: Path, load: Callable[[], object]) -> None:
    try:
        load()
    except (ssl.SSLError, OSError) as error:
        raise HostFault(f"{path} can't be used for TLS with the registry: {error}; correct or remove it") from error
