"""A built site in a real browser: its files served to this machine, when a page has everything on it, and what it asks
other servers for."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Whether a page is no wider than what its window shows beside the scrollbar.
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# Formulas are set, widgets have taken the places of their stills, and a side bar of the theme has arrived.
_COMPLETE = """async () => {
    await Promise.all(document.getAnimations().map((one) => one.finished.catch(() => null)));
    if (document.querySelector(".math")) await window.MathJax.startup.promise;
    return !document.querySelector("[data-widget-script] script");
}"""


def wait_until_complete(page: Page) -> None:
    """Waits for the formulas and widgets of an open page, and for what still moves on it."""
    page.wait_for_function(_COMPLETE, polling=50)  # by default it is every frame, and asks for each


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which the files in `folder` are served to this machine."""
    with _at_work(functools.partial(_Quiet, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}"


REFUSED: list[str] = []  # what pages have asked other servers for, one request a line


@contextmanager
def refusing_proxy() -> Iterator[str]:
    """Host and port of a proxy that refuses each request and adds it to REFUSED.

    Chromium asks no proxy for what is at 127.0.0.1.
    """
    with _at_work(_Refusing) as port:
        yield f"127.0.0.1:{port}"


@contextmanager
def _at_work(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of this machine at which a handler answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    # By default it looks twice a second whether it is to end.
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")  # the theme and MathJax are fetched once
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


class _Refusing(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        REFUSED.append(self.requestline)
        self.send_error(403)

    do_GET = do_HEAD = do_POST = do_CONNECT = _refuse  # CONNECT: what goes over https or a socket

    def log_message(self, *_: object) -> None:
        pass
