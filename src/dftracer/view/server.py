"""The server of the page: one socket on loopback, its access control, its answers, and the runs it shows."""

from __future__ import annotations

import contextlib
import errno
import json
import mimetypes
import os
import secrets
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from importlib import resources
from types import FrameType
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dftracer.view.drawn import DrawnProcess
from dftracer.view.events import event_at, event_details, flows_between, list_events, search, search_args
from dftracer.view.figures import flame_graph, range_facts, step_rows, step_window
from dftracer.view.run import Run
from dftracer.view.source import Source

# --- The server: one socket on loopback, until Ctrl-C or SIGTERM


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
        print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
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


# --- Access control: only the page this server was started for may send requests
#
# The server listens on loopback only. Still, any program of any user on the machine and any web page in the
# user's browser can reach it: each request must carry the token, name this server as its host (a foreign name
# that resolves to 127.0.0.1 is rejected), and come from this origin if it states one.


_Scope = MutableMapping[str, Any]
_App = Callable[[_Scope, Any, Any], Awaitable[None]]
_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Rejects unauthorised requests; tells browsers what the page may do."""

    def __init__(self, app: _App, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: _Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        reason = self._refusal(scope)
        if reason is not None:
            await _refuse(send, reason)
            return
        nonce = secrets.token_urlsafe(16)
        scope["nonce"] = nonce
        headers = [
            (b"content-security-policy", _POLICY.format(nonce=nonce).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, scope: _Scope) -> str | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return "this server only answers at its own address"
        if any(origin.lower() not in self._origins for origin in headers.get(b"origin", [])):
            return "requests from other sites are rejected"
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if len(asked) != 1 or not secrets.compare_digest(asked[0].encode("utf-8", "replace"), self._token):
            return "the token is missing or wrong: use the address that `dftracer view` printed"
        return None


async def _refuse(send: Any, reason: str) -> None:
    body = f"403: {reason}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- The page and its requests, as a web application


_WIDEST = 8192
_MAX_ROWS = 20_000
_MAX_ARROWS = 400


def make_app(session: Session, token: str) -> Starlette:
    """The application; `Guard` checks every request first."""
    files = {
        f.name: f.read_bytes() for f in (resources.files("dftracer.view") / "page").iterdir() if f.is_file()
    }

    def page(request: Request) -> Response:
        modules = {name: f"/static/{name}?token={token}" for name in files if name.endswith(".js")}
        text = files["index.html"].decode()
        for mark, value in (
            ("__NONCE__", request.scope["nonce"]),
            ("__TOKEN__", token),
            ("__MODULES__", json.dumps({"imports": {f"view/{n}": url for n, url in modules.items()}})),
        ):
            text = text.replace(mark, value)
        return Response(text, media_type="text/html; charset=utf-8")

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files or name == "index.html":
            raise HTTPException(404)
        return Response(files[name], media_type=mimetypes.guess_type(name)[0] or "application/octet-stream")

    routes = [Route("/", page), Route("/static/{name}", static)]
    routes += [Route(f"/api/{name}", _answer(session, make)) for name, make in _ANSWERS.items()]
    return Starlette(
        routes=routes, exception_handlers={KeyError: _missing, ValueError: _bad, OverflowError: _bad}
    )


def _answer(session: Session, make: Callable[[Session, Request], Any]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        value = make(session, request)
        if isinstance(value, bytes):
            return Response(value, media_type="application/octet-stream")
        # In ASCII: file names need not be valid text.
        return Response(json.dumps(value, default=str).encode("ascii"), media_type="application/json")

    return endpoint


def _missing(_: Request, e: Exception) -> Response:
    return Response(f"not found: {e}", 404, media_type="text/plain")


def _bad(_: Request, e: Exception) -> Response:
    return Response(f"bad request: {e}", 400, media_type="text/plain")


def _shown(session: Session, request: Request) -> Shown:
    number = int(request.query_params.get("run", "0"))
    if not 0 <= number < len(session.shown):
        raise KeyError(f"run {number}")
    return session.shown[number]


def _run(session: Session, request: Request) -> Run:
    shown = _shown(session, request)
    if shown.run is None:
        raise HTTPException(503, "still reading the trace")
    reading = request.query_params.get("reading")
    if reading is None:
        return shown.run
    run = shown.readings.get(int(reading))
    if run is None:
        raise HTTPException(410, "the trace was read again since")
    return run


def _window(request: Request) -> tuple[int, int]:
    t0, t1 = (int(float(request.query_params[k])) for k in ("t0", "t1"))
    if not -(1 << 62) < t0 < t1 < 1 << 62:
        raise ValueError("t0 must come before t1")
    return t0, t1


def _numbers(request: Request, key: str) -> list[int]:
    """`3-5,9`: numbers and runs of them, in their order, as many as there are rows."""
    out: list[int] = []
    for piece in request.query_params.get(key, "").split(","):
        first, dash, last = piece.partition("-")
        if dash:
            out += range(int(first), min(int(last), int(first) + _MAX_ROWS) + 1)
        elif piece:
            out.append(int(piece))
        if len(out) >= _MAX_ROWS:
            break
    return list(dict.fromkeys(out[:_MAX_ROWS]))


def _hidden(request: Request) -> frozenset[str]:
    return frozenset(request.query_params.getlist("hide"))


def _ranks(request: Request) -> frozenset[int] | None:
    return frozenset(_numbers(request, "ranks")) if request.query_params.get("ranks") else None


def _state(session: Session, _: Request) -> Any:
    return session.state()


def _about(session: Session, request: Request) -> Any:
    shown = _shown(session, request)
    if shown.run is None:
        raise HTTPException(503, "still reading the trace")
    reading, steps = shown.reading, shown.steps
    return {
        **shown.readings[reading].about(),
        "generation": shown.generation,
        "reading": reading,
        "steps": None if steps is None else {k: v for k, v in steps.info.items() if k != "stacks"},
    }


def _picture(session: Session, request: Request) -> Any:
    shown, run = _shown(session, request), _run(session, request)
    width = max(1, min(int(request.query_params["w"]), _WIDEST))
    rows = _numbers(request, "rows")
    step = request.query_params.get("step")
    only = step_window(shown.steps, run.base, int(step)) if step else {}
    if step and not only:
        rows = []
    return run.picture(_window(request), width, rows, _hidden(request), only)


def _event(session: Session, request: Request) -> Any:
    run = _run(session, request)
    part, span = (int(request.query_params[k]) for k in ("part", "span"))
    if not 0 <= part < len(run.parts):
        raise KeyError(f"part {part}")
    return event_details(run, part, span)


def _at(session: Session, request: Request) -> Any:
    row, t, reach = (int(float(request.query_params[k])) for k in ("row", "t", "reach"))
    return event_at(_run(session, request), row, t, reach)


def _search(session: Session, request: Request) -> Any:
    run, text = _run(session, request), request.query_params["q"]
    if request.query_params.get("args"):
        return search_args(run, text, _shown(session, request).source.trace.threads)
    return search(run, text)


def _range(session: Session, request: Request) -> Any:
    return range_facts(_run(session, request), _window(request), _ranks(request), _hidden(request))


def _steps(session: Session, request: Request) -> Any:
    shown, run = _shown(session, request), _run(session, request)
    if shown.steps is None:
        return {"pending": True, "rows": [], "total": 0}
    rank, offset, limit = (int(request.query_params[k]) for k in ("rank", "offset", "limit"))
    return step_rows(shown.steps, run.base, rank, offset, min(limit, 1000))


def _step(session: Session, request: Request) -> Any:
    """Where a step is: rank to its begin and end."""
    shown, run = _shown(session, request), _run(session, request)
    return step_window(shown.steps, run.base, int(request.query_params["step"]))


def _flame(session: Session, request: Request) -> Any:
    shown, run = _shown(session, request), _run(session, request)
    return flame_graph(shown.steps, run.base, _window(request), _ranks(request))


def _flows(session: Session, request: Request) -> Any:
    rows = _numbers(request, "rows")
    return flows_between(_run(session, request), _window(request), rows, _MAX_ARROWS)


def _list(session: Session, request: Request) -> Any:
    rows = _numbers(request, "rows")
    return list_events(_run(session, request), _window(request), rows, _hidden(request))


def _machine(session: Session, request: Request) -> Any:
    return _run(session, request).machine()


_ANSWERS: dict[str, Callable[[Session, Request], Any]] = {
    "state": _state,
    "run": _about,
    "picture": _picture,
    "event": _event,
    "at": _at,
    "search": _search,
    "range": _range,
    "steps": _steps,
    "step": _step,
    "flame": _flame,
    "flows": _flows,
    "list": _list,
    "machine": _machine,
}


# --- What the server shows: runs read in the background, repeatedly while a job is followed


_MIN_WAIT_S = 1.0
_WAIT_FACTOR = 4  # reading again takes at most a fifth of one core


@dataclass
class Shown:
    """One run and the progress of reading it."""

    source: Source
    run: Run | None = None
    whole: bool = False  # of a large one, its first process is shown while the others are read
    readings: dict[int, Run] = field(default_factory=dict)  # the last and the one before it, by number
    steps: DrawnProcess | None = None
    done: int = 0
    total: int = 0
    error: str | None = None
    generation: int = 0  # grows whenever there is something new to draw
    stamp: str = ""
    live: dict[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> int:
        return max(self.readings, default=0)

    def read_as(self, run: Run) -> None:
        """Show what was just read. A page asks about the reading it knows until it has heard of this one."""
        last = self.reading
        self.readings = {last + 1: run, **({last: self.readings[last]} if last else {})}
        self.run = run

    def state(self) -> dict[str, Any]:
        return {
            "title": self.source.title,
            "ready": self.run is not None,
            "whole": self.whole,
            "steps": self.steps is not None,
            "done": self.done,
            "total": self.total,
            "error": self.error,
            "generation": self.generation,
            "notes": self.source.notes,
            "live": self.live,
        }


class Session:
    """Reads the runs in a separate thread, one after the other."""

    def __init__(self, sources: list[Source], follow: bool = False) -> None:
        self.shown = [Shown(s) for s in sources]
        self.follow = follow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dftracer-view", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)
        for shown in self.shown:
            shown.source.close()

    def state(self) -> dict[str, Any]:
        return {"follow": self.follow, "runs": [s.state() for s in self.shown]}

    def _work(self) -> None:
        began = time.monotonic()
        for shown in self.shown:
            self._load(shown)
        for shown in self.shown:
            self._find_steps(shown)
        while self.follow:
            took = time.monotonic() - began
            if self._stop.wait(max(_MIN_WAIT_S, _WAIT_FACTOR * took)):
                return
            began = time.monotonic()
            for shown in self.shown:
                self._refresh(shown)

    def _refresh(self, shown: Shown) -> None:
        try:
            shown.source.reopen()
            if shown.run is not None:
                shown.live = shown.source.facts()
        except Exception as e:  # the page must show it; the next attempt may succeed
            shown.error = str(e) or type(e).__name__
            return
        if shown.source.stamp() != shown.stamp:
            self._load(shown)
            self._find_steps(shown)

    def _load(self, shown: Shown) -> None:
        def progress(done: int, total: int) -> None:
            shown.done, shown.total = done, total
            if self._stop.is_set():
                raise _Stopped

        def first(run: Run) -> None:
            if shown.run is None:
                shown.read_as(run)
                shown.generation += 1

        stamp = shown.source.stamp()
        try:
            run = shown.source.load(progress, first)
            shown.live = shown.source.facts() if self.follow else {}
            shown.read_as(run)
            shown.whole = True
            shown.error, shown.stamp = None, stamp
            shown.generation += 1
        except _Stopped:
            pass
        except Exception as e:  # the page must show it; the thread has no other way to report it
            shown.error = str(e) or type(e).__name__

    def _find_steps(self, shown: Shown) -> None:
        if not shown.whole or self._stop.is_set():
            return
        try:
            shown.steps = shown.source.steps()
            shown.generation += 1
        except Exception as e:
            note = f"steps are not shown: {e}"
            if note not in shown.source.notes:
                shown.source.notes.append(note)


class _Stopped(Exception):
    """The server ends."""
