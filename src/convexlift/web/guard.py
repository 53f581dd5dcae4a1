"""What stands between the network and the page: hosts, sizes, and nothing from elsewhere.

- Browsers are told to load nothing from other servers (Content-Security-Policy).
- Requests for other host names are refused, so that no other page can reach a server on this
  machine through a name of its own (DNS rebinding).
- Gradio fetches files from addresses it is given; such addresses are refused here.
- Bodies are cut off where an upload would be too large.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = {
    # Gradio's own scripts are inline, compiled styles too; blobs are its workers and drawings.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; frame-ancestors 'self'; "
        "base-uri 'self'; form-action 'self'; object-src 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_SPARE = 64 << 10
_REMOTE = ("http:", "https:", "ftp:", "//")
_QUESTIONS = ("/queue/join", "/run/", "/call/", "/api/", "/component_server")


class Guard:
    """ASGI middleware.

    Args:
        app: behind it.
        body_bytes: the longest request.
        hosts: the names the server answers to, or None for any.
    """

    def __init__(self, app: App, body_bytes: int, hosts: Iterable[str] | None) -> None:
        self.app, self.body_bytes = app, body_bytes + _SPARE
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the module."""
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            if not _harmless(error):
                raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = str(scope["path"])
        if not self._known_host(scope):
            await _refuse(send, 421, "This server does not answer to that name.")
        elif _fetches(path):
            await _refuse(send, 403, "Files from other servers are not fetched.")
        elif _length(scope) > self.body_bytes:
            await _refuse(send, 413, "The upload is too large.")
        elif scope["method"] == "POST" and any(part in path for part in _QUESTIONS):
            await self._question(scope, receive, send)
        else:
            await self.app(scope, self._counted(receive), _with_headers(send))

    def _known_host(self, scope: Scope) -> bool:
        if self.hosts is None:
            return True
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
        name = given[1:].split("]")[0] if given.startswith("[") else given.rsplit(":", 1)[0]
        return name in self.hosts

    async def _question(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more and len(body) <= self.body_bytes:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self.body_bytes:
            await _refuse(send, 413, "The request is too large.")
            return
        if names_other_server(body):
            await _refuse(send, 403, "Files from other servers are not fetched.")
            return
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()  # the client's disconnection, once it comes
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, _with_headers(send))

    def _counted(self, receive: Receive) -> Receive:
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.body_bytes:
                return {"type": "http.disconnect"}
            return message

        return counted


def names_other_server(body: bytes) -> bool:
    """Whether a request describes a file by an address elsewhere."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return False  # not JSON: gradio takes no descriptions of files from it
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            path = item.get("path")
            if isinstance(path, str) and path.strip().lower().startswith(_REMOTE):
                return True
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return False


def _harmless(error: Exception) -> bool:
    """Who left in the middle of an answer, whose files are gone then, is no error of the server."""
    return type(error).__name__ == "ClientDisconnect" or str(error).startswith("File at path")


def _fetches(path: str) -> bool:
    lower = path.lower()
    return "/proxy=" in lower or any(f"/file={start}" in lower for start in _REMOTE)


def _length(scope: Scope) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await send(message)

    return wrapped


async def _refuse(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
