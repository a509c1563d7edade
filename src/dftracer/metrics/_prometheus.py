"""Prometheus: the text of an exposition, a file that holds it, and a small server for scrapes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable

from dftracer import _config, _core
from dftracer.metrics._figures import Figures, samples

PORT = 9464
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PORTS_TRIED = 64
_REQUEST_S = 2.0  # how long one client may keep the next waiting
_LONGEST_REQUEST = 1 << 14
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def exposition(figures: Figures, labels: dict[str, str], running: bool = True) -> str:
    """The text format, version 0.0.4."""
    lines = []
    for metric, found in samples(figures, running):
        if found:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for suffix, more, value in found:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**labels, **more}.items())
            lines.append(f"{metric.name}{suffix}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class TextFile:
    """A file for node_exporter's textfile collector; readers see the old or the new one, never a part."""

    def __init__(self, path: str, labels: dict[str, str]) -> None:
        if path.endswith("/") or os.path.isdir(path):
            path = os.path.join(path, f"dftracer-{labels['run']}-{labels['rank']}.prom")
        elif (_config.rank_info().world_size or 1) > 1:
            stem, suffix = os.path.splitext(path)
            path = f"{stem}-{labels['rank']}{suffix}"
        self.path = os.path.abspath(path)
        self._labels = labels
        os.makedirs(os.path.dirname(self.path), exist_ok=True)

    def write(self, figures: Figures, last: bool) -> None:
        """Replace it."""
        text = exposition(figures, self._labels, running=not last)
        # Not *.prom, which the collector would read.
        beside = f"{self.path}.{os.getpid()}.tmp"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, self.path)
        except OSError:
            if os.path.exists(beside):
                os.unlink(beside)
            raise

    def close(self) -> None:
        """The file stays, with the last figures."""


class Server:
    """`/metrics` on the first free port from the one given plus the rank on this host."""

    def __init__(self, where: str, labels: dict[str, str]) -> None:
        host, port = address(where)
        self._labels = labels
        rank = (_config.rank_info().local_rank or 0) if port else 0
        self._socket = _listening(host, port + rank)
        bound = self._socket.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        _core.log_metadata("CM", "metrics.prometheus", self.address)

    def serve(self, read: Callable[[], Figures]) -> None:
        """Answer scrapes until `close`."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            with client:
                try:
                    self._answer(client, read)
                except OSError:
                    continue  # it has gone

    def _answer(self, client: socket.socket, read: Callable[[], Figures]) -> None:
        method, path = _request(client)
        body = ""
        if method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        elif path.partition("?")[0] not in ("/metrics", "/"):
            status = "404 Not Found"
        else:
            status, body = "200 OK", exposition(read(), self._labels)
        content = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        client.settimeout(_REQUEST_S)
        client.sendall(head.encode() + (b"" if method == "HEAD" else content))

    def close(self) -> None:
        """Free the port; wakes the thread that waits for scrapes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def let_go(self) -> None:
        """In a forked child: the port is the parent's alone."""
        self._socket.close()


def address(where: str) -> tuple[str, int]:
    """`9464`, `0.0.0.0:9464`, `[::]:9464` or nothing; loopback unless told."""
    host, _, port = where.rpartition(":")
    if not port:
        return host.strip("[]") or "127.0.0.1", PORT
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{port} is not a port")
    return host.strip("[]") or "127.0.0.1", int(port)


def _listening(host: str, first: int) -> socket.socket:
    """A socket on `first`, or on the next port that is free: another job of this host may have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(16)
        except OSError as error:
            listening.close()
            if error.errno not in _TAKEN:
                raise
        else:
            return listening
    raise OSError(f"no free port from {first} on")


def _request(client: socket.socket) -> tuple[str, str]:
    """Method and path of a request; whatever its headers say is not needed."""
    until = time.monotonic() + _REQUEST_S
    text = b""
    while b"\r\n\r\n" not in text and b"\n\n" not in text:
        client.settimeout(max(0.001, until - time.monotonic()))
        more = client.recv(4096)
        text += more
        if not more or len(text) > _LONGEST_REQUEST or time.monotonic() > until:
            raise OSError("not a request")
    words = text.split(b"\n", 1)[0].decode("latin-1").split()
    return (words[0], words[1]) if len(words) >= 2 else ("", "")
