"""The page and its requests, as a web application."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dftracer.view.details import event_at, event_details
from dftracer.view.flows import flows_between
from dftracer.view.listing import list_events
from dftracer.view.ranges import range_facts
from dftracer.view.run import Run
from dftracer.view.searching import search, search_args
from dftracer.view.session import Session, Shown
from dftracer.view.steps import step_rows, step_window

__all__ = ["make_app"]

_WIDEST = 8192
_MOST_ROWS = 20_000
_MOST_ARROWS = 400


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
            out += range(int(first), min(int(last), int(first) + _MOST_ROWS) + 1)
        elif piece:
            out.append(int(piece))
        if len(out) >= _MOST_ROWS:
            break
    return list(dict.fromkeys(out[:_MOST_ROWS]))


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
        "steps": None if steps is None else steps.info,
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


def _flows(session: Session, request: Request) -> Any:
    rows = _numbers(request, "rows")
    return flows_between(_run(session, request), _window(request), rows, _MOST_ARROWS)


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
    "flows": _flows,
    "list": _list,
    "machine": _machine,
}
