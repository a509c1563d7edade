"""The server: one socket on loopback, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn

from dftracer.view.app import make_app
from dftracer.view.guard import Guard
from dftracer.view.session import Session

__all__ = ["PortTaken", "serve"]

_ADDRESS = "127.0.0.1"


class PortTaken(Exception):
    """Another program uses the port."""


class _Server(uvicorn.Server):
    """Ends on a signal and returns; uvicorn would raise the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def end(_: int, __: FrameType | None) -> None:
            self.should_exit = True

        before = {s: signal.signal(s, end) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(session: Session, port: int, show: bool, quiet: bool = False) -> None:
    """Print the address, open it in a browser if `show`, and serve until told to stop."""
    listening = _listen(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    url = f"http://{_ADDRESS}:{port}/?token={token}"
    app: Any = Guard(make_app(session, token), token, port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=1 << 18,  # requests for the rows of very many lanes are long
        http="h11",
    )
    print(url, flush=True)
    if not quiet:
        print("Ctrl-C ends it.", file=sys.stderr, flush=True)
    session.start()
    if show and _has_browser():
        webbrowser.open(url)
    try:
        _Server(config).run(sockets=[listening])
    finally:
        session.stop()
        listening.close()


def _listen(port: int) -> socket.socket:
    out = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        out.bind((_ADDRESS, port))
        out.listen(128)
    except OSError as e:
        out.close()
        if e.errno in {errno.EADDRINUSE, errno.EACCES}:
            why = "is in use" if e.errno == errno.EADDRINUSE else "needs privileges"
            raise PortTaken(f"port {port} {why}: choose another, or 0 for any free one") from None
        raise
    return out


def _has_browser() -> bool:
    """Whether a window can be opened: without a display, a browser would open in the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY"))
