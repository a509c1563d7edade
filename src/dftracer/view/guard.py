"""Access control: only the page this server was started for may send requests.

The server listens on loopback only. Still, any program of any user on the machine and any web page in the
user's browser can reach it: each request must carry the token, name this server as its host (a foreign name
that resolves to 127.0.0.1 is rejected), and come from this origin if it states one.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

__all__ = ["Guard"]

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
