"""Request filtering: the one place that every request passes before Gradio sees it.

- Requests for other host names are refused, so that no other page can reach a server on this
  machine through a name of its own (DNS rebinding).
- Only the routes that the page needs exist.
- A visitor is a cookie. Sessions are renamed after it, and files that an event or an address names
  must be in the visitor's own folder.
- Bodies are cut off where an upload would be too large, and the queue has bounds for each visitor.
- Browsers are told to load nothing from other servers, and to show the page in no other page.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode

from convexlift.web.payloads import Refused, check_files, is_own_file, parsed
from convexlift.web.visitors import new_cookie, session_key, visitor_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
VISITOR = "convexlift.visitor"
"""Where a request's scope says who asks."""

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
    "x-frame-options": "SAMEORIGIN",
}
_SPARE = 64 << 10
_API = "/gradio_api/"
_PUBLIC = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/(static|assets|svelte)/.+"
    r"|/gradio_api/(info|app_id|theme\.css|startup-events|queue/status)/?"
)
"""Paths that are the same for everyone; with GET and HEAD only."""
_EVENTS = re.compile(r"/gradio_api/(queue/join|run/[\w.-]+|cancel|reset)/?")
_UPLOADS = re.compile(r"/gradio_api/(upload|component_server)/?")
_HEARTBEAT = re.compile(r"(/gradio_api/heartbeat/)([^/]+)")
_FILE = "/gradio_api/file="


class Policy(Protocol):
    """What the guard asks of the page behind it."""

    def folder_of(self, visitor: str) -> Path:
        """Where all files of a visitor are."""

    def arrived(self, key: str) -> None:
        """The page of a session is open."""

    async def departed(self, key: str) -> None:
        """It was closed."""

    def require_place(self, event: object, visitor: str) -> None:
        """Refuse an event for which the queue has no place."""

    def discard(self, visitor: str, paths: Iterable[str]) -> None:
        """Delete uploads whose event was refused."""


class Guard:
    """ASGI middleware.

    Args:
        app: behind it.
        body_bytes: the longest request.
        hosts: the names the server answers to, or None for any.
        policy: folders of visitors, and places in the queue.
        root_path: under which a proxy shows the page; the cookie is for this path only.
    """

    def __init__(
        self,
        app: App,
        body_bytes: int,
        hosts: Iterable[str] | None,
        policy: Policy,
        root_path: str = "",
    ) -> None:
        self.app, self.body_bytes = app, body_bytes + _SPARE
        self.hosts = None if hosts is None else {host.lower() for host in hosts}
        self.policy, self.root_path = policy, root_path
        self._joining = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            # One answer for each request, whoever gives it.
            answer, body = _Answer(send), _Body(receive, self.body_bytes)
            try:
                await self._answer(scope, body, answer)
            except Refused as refusal:
                if refusal.status == 413:
                    await body.drain()
                await answer.refuse(refusal)
            except Exception as error:
                if not _harmless(error):
                    raise
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, body: _Body, answer: _Answer) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self._known_host(headers.get(b"host", "")):
            raise Refused(421, "This server does not answer to that name.")
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > self.body_bytes:
            raise Refused(413, "The upload is too large.")
        visitor, path = visitor_of(headers.get(b"cookie", "")), str(scope["path"])
        if self.root_path and path.startswith(f"{self.root_path}/"):
            # The owner, on the machine itself, has no proxy that takes the root path away.
            path = path.removeprefix(self.root_path)
            scope = {**scope, "path": path, "raw_path": quote(path).encode("ascii")}
        if _PUBLIC.fullmatch(path):
            _require_method(scope, "GET", "HEAD")
            if visitor is None and path == "/":
                answer.cookie = new_cookie(self.root_path, scope.get("scheme") == "https")
            await self.app(scope, body.receive, answer.send)
            return
        if not path.startswith(_API):
            raise Refused(404, "There is nothing here.")
        if visitor is None:
            raise Refused(403, "Load the page first, with cookies allowed.")
        await self._private({**scope, VISITOR: visitor}, visitor, body, answer)

    async def _private(self, scope: Scope, visitor: str, body: _Body, answer: _Answer) -> None:
        """Requests of one visitor."""
        path = str(scope["path"])
        if _EVENTS.fullmatch(path):
            _require_method(scope, "POST")
            await self._event(scope, visitor, body, answer)
            return
        if _UPLOADS.fullmatch(path):
            _require_method(scope, "POST")
        elif path.startswith(_FILE):
            _require_method(scope, "GET", "HEAD")
            if not is_own_file(path.removeprefix(_FILE), self.policy.folder_of(visitor)):
                raise Refused(403, "This is no file of yours, or it was deleted.")
        elif found := _HEARTBEAT.fullmatch(path):
            _require_method(scope, "GET")
            key = _renamed(visitor, found[2])
            self.policy.arrived(key)
            path = found[1] + key
            scope = {**scope, "path": path, "raw_path": path.encode("ascii")}
            try:  # the connection lasts as long as the page is open
                await self.app(scope, body.receive, answer.send)
            finally:
                await self.policy.departed(key)
            return
        elif path.rstrip("/") == "/gradio_api/queue/data":
            _require_method(scope, "GET")
            query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
            query["session_hash"] = _renamed(visitor, query.get("session_hash"))
            scope["query_string"] = urlencode(query).encode("ascii")
        elif path.rstrip("/") != "/gradio_api/upload_progress":
            raise Refused(404, "There is nothing here.")
        await self.app(scope, body.receive, answer.send)

    async def _event(self, scope: Scope, visitor: str, body: _Body, answer: _Answer) -> None:
        """An event: its session and its files are the visitor's, whatever it says."""
        content, folder = parsed(await body.all()), self.policy.folder_of(visitor)
        content["session_hash"] = _renamed(visitor, content.get("session_hash"))
        paths = check_files(content, lambda path: is_own_file(path, folder))
        # Written anew: what was checked is what Gradio reads, also where keys come twice.
        body.replace(json.dumps(content).encode())
        scope["headers"] = [
            *((n, v) for n, v in scope["headers"] if n not in (b"content-length", b"content-type")),
            (b"content-type", b"application/json"),
            (b"content-length", str(body.length).encode()),
        ]
        if not scope["path"].startswith("/gradio_api/queue/join"):
            await self.app(scope, body.receive, answer.send)
            return
        async with self._joining:  # between the count and the place that is taken
            try:
                self.policy.require_place(content.get("fn_index"), visitor)
            except Refused:
                self.policy.discard(visitor, paths)
                raise
            await self.app(scope, body.receive, answer.send)

    def _known_host(self, given: str) -> bool:
        if self.hosts is None:
            return True
        given = given.lower()
        name = given[1:].split("]")[0] if given.startswith("[") else given.rsplit(":", 1)[0]
        return name in self.hosts


class _Body:
    """The body of a request, as it comes; longer ones than allowed are refused on their way."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._total = receive, most, 0
        self._instead: bytes | None = None

    async def receive(self) -> Message:
        """The next message."""
        if self._instead is not None:
            body, self._instead = self._instead, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        self._total += len(message.get("body", b""))
        if self._total > self._most:
            raise Refused(413, "The upload is too large.")
        return message

    async def all(self) -> bytes:
        """The whole body."""
        parts, more = [], True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "The request is incomplete.")
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def drain(self) -> None:
        """Read on for a while, and keep nothing: browsers listen only when they have spoken."""
        more = True
        while more and self._total < 4 * self._most:
            message = await self._receive()
            self._total += len(message.get("body", b""))
            more = message.get("more_body", False)

    def replace(self, body: bytes) -> None:
        """Pass on another body."""
        self._instead, self.length = body, len(body)


class _Answer:
    """The answer to a request, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send, self._begun = send, False
        self.cookie: str | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._begun = True
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            if self.cookie is not None:
                ours.append((b"set-cookie", self.cookie.encode()))
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        """Say why not; Gradio's client shows ``detail``."""
        if self._begun:
            return
        body = json.dumps({"detail": refusal.sentence}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await self.send(start)
        await self._send({"type": "http.response.body", "body": body})


def _renamed(visitor: str, session: object) -> str:
    key = session_key(visitor, session)
    if key is None:
        raise Refused(400, "The session has no valid name: reload the page.")
    return key


def _require_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise Refused(405, "This is not done here.")


def _harmless(error: Exception) -> bool:
    """Who left in the middle of an answer, whose files are gone then, is no error of the server."""
    return type(error).__name__ == "ClientDisconnect" or str(error).startswith("File at path")
