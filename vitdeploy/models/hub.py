"""Where weights are fetched from: reached at once, or the cache alone."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path, PurePosixPath
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PATIENCE_SECONDS = 5.0


@contextmanager
def cache_where_out_of_reach() -> Iterator[None]:
    """Where the hub does not answer, let huggingface_hub take what its cache holds, or say no.

    By itself it tries again for most of a minute. Raises ConnectionError where
    the cache does not do.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    is_cut_off = not offline and not is_answered(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline or is_cut_off
    try:
        yield
    except OSError as error:
        if not is_cut_off:
            raise
        raise ConnectionError(
            f"{constants.ENDPOINT} does not answer, and its cache here does not hold all of it"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = offline


@contextmanager
def fetched_by_torch(url: str) -> Iterator[None]:
    """What `torch.hub` fetches from `url` within: from its cache, or a server that answers.

    It waits as long as the system does, and says what it fetches on standard
    output, which is the command's own. Raises ConnectionError where the file
    is not in its cache and the server does not answer.
    """
    import torch

    parts = urlsplit(url)
    cached = Path(torch.hub.get_dir(), "checkpoints", PurePosixPath(parts.path).name)
    if not cached.is_file() and not is_answered(url):
        raise ConnectionError(f"{parts.scheme}://{parts.netloc} does not answer")
    with redirect_stdout(sys.stderr):
        yield


def is_answered(url: str, patience_seconds: float = _PATIENCE_SECONDS) -> bool:
    """Whether a connection to the server of `url` (or to the proxy before it) can be opened."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    opened: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), patience_seconds).close()
        except OSError:
            return
        opened.append(True)

    # Looking a name up knows no time limit, so it is left behind.
    attempt = Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(patience_seconds)
    return bool(opened)
