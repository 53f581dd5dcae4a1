"""Request filtering: every request is checked here before Gradio sees it.

- Requests for other host names are refused, so that no other page can reach a server on this
  machine through a name of its own (DNS rebinding).
- Only the routes that the page needs exist.
- A visitor is a cookie. Session names are replaced by names derived from the cookie, and files
  named by an event or a URL must be in the visitor's own folder.
- The size of request bodies and the number of queued events per visitor are limited.
- Headers forbid browsers to load anything from other servers, and to show the page in a frame of
  another site.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convexlift.web.limits import Limits
from convexlift.web.visitors import Sessions, new_cookie, session_key, visitor_of

VISITOR = "convexlift.visitor"
"""The key of the visitor's name in the scope of a request."""

RUNS, SMALL = "runs", "small"
"""Groups of events in the queue: runs, and everything that takes a moment, such as uploads."""

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
_RUNS_EACH, _SMALL_EACH, _SMALL_ALL = 2, 16, 400
_SPARE = 64 << 10  # bytes of a request besides the uploaded file
_API = "/gradio_api/"
_PUBLIC = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/(static|assets|svelte)/.+"
    r"|/gradio_api/(info|app_id|theme\.css|startup-events|queue/status)/?"
)
"""Paths that are the same for everyone; GET and HEAD only."""
_EVENTS = re.compile(r"/gradio_api/(queue/join|run/[\w.-]+|cancel|reset)/?")
_UPLOADS = re.compile(r"/gradio_api/(upload|component_server)/?")
_HEARTBEAT = re.compile(r"(/gradio_api/heartbeat/)([^/]+)")
_FILE = "/gradio_api/file="


class Queue:
    """Gradio's queue: limits per visitor and in total, and the end of a session."""

    def __init__(self, blocks: Any, limits: Limits) -> None:
        self.blocks, self.limits = blocks, limits

    def require_place(self, event: object, visitor: str) -> None:
        """Raise HTTPException, with advice, if the queue has no place for an event."""
        function = self.blocks.fns.get(event) if isinstance(event, int) else None
        group = SMALL if function is None else str(function.concurrency_id)
        waiting, active = self._events(group)
        mine = sum(e.session_hash.startswith(f"{visitor}-") for e in (*waiting, *active))
        if group == RUNS:
            if mine >= _RUNS_EACH:
                sentence = f"You have {mine} runs in the queue: wait for one to end, or press Stop."
                raise HTTPException(429, sentence)
            if len(waiting) >= self.limits.waiting:
                raise HTTPException(503, f"{len(waiting)} runs are already waiting: try later.")
        elif mine >= _SMALL_EACH or len(waiting) >= _SMALL_ALL:
            raise HTTPException(429, "Too many requests are waiting: try again in a moment.")

    def unread(self, key: str) -> int:
        """The number of messages that the browser of a session has not fetched yet."""
        messages = self.blocks._queue.pending_messages_per_session.get(key)
        return 0 if messages is None else messages.qsize()

    async def clear(self, key: str) -> None:
        """Cancel the events of a session whose page was closed."""
        await self.blocks._queue.clean_events(session_hash=key)

    def is_busy(self, key: str) -> bool:
        """Whether a session has an event that waits or runs, and is not cancelled."""
        events = list(self.blocks._queue.event_ids_to_events.values())
        return any(event.alive and event.session_hash == key for event in events)

    def forget(self, key: str) -> None:
        """Free Gradio's components and unread messages of a session."""
        self.blocks.state_holder.session_data.pop(key, None)
        self.blocks.state_holder.time_last_used.pop(key, None)
        # Gradio's queue ends for all visitors if an event has no list for its messages.
        if not self.is_busy(key):
            self.blocks._queue.pending_messages_per_session.pop(key, None)
            self.blocks._queue.pending_event_ids_session.pop(key, None)

    def _events(self, group: str) -> tuple[list[Any], list[Any]]:
        """The waiting and the active events of a group; Gradio has no public list of them."""
        queue = self.blocks._queue
        line = queue.event_queue_per_concurrency_id.get(group)
        active = [e for job in queue.active_jobs if job is not None for e in job]
        return (
            [] if line is None else list(line.queue),
            [e for e in active if e.concurrency_id == group],
        )


class RequestFilter:
    """ASGI middleware: refuses a request, or passes it on to the app.

    Args:
        app: Gradio's app, with the routes of uploads.
        sessions, queue: the sessions and events of all visitors.
        body_bytes: the size of the largest upload.
        hosts: the host names the server answers to, or None for any.
        root_path: the path under which a proxy shows the page; the cookie is for this path only.
    """

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        queue: Queue,
        *,
        body_bytes: int,
        hosts: Iterable[str] | None,
        root_path: str = "",
    ) -> None:
        self.app, self.sessions, self.queue = app, sessions, queue
        self.body_bytes, self.root_path = body_bytes + _SPARE, root_path
        self.hosts = None if hosts is None else {host.lower() for host in hosts}
        self._joining = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(receive, send, self.body_bytes)
            try:
                await self._answer(scope, exchange)
            except HTTPException as refusal:
                if refusal.status_code == 413:
                    await exchange.drain()
                if not exchange.answered:  # Gradio's client shows "detail"
                    answer = JSONResponse({"detail": refusal.detail}, refusal.status_code)
                    await answer(scope, receive, exchange.send)
            except Exception as error:
                # A page was closed during an answer; its session may be deleted, with the file.
                left = isinstance(error, ClientDisconnect) or str(error).startswith("File at path")
                if not left:
                    raise
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        headers = Headers(scope=scope)
        if not self._known_host(headers.get("host", "")):
            raise HTTPException(421, "This server does not answer to that name.")
        # An early answer to honest clients; `_Exchange.receive` counts the bytes of the others.
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.body_bytes:
            raise HTTPException(413, "The upload is too large.")
        visitor, path = visitor_of(headers.get("cookie", "")), str(scope["path"])
        if self.root_path and path.startswith(f"{self.root_path}/"):
            # On the machine itself there is no proxy that removes the root path.
            path = path.removeprefix(self.root_path)
            scope = {**scope, "path": path, "raw_path": quote(path).encode("ascii")}
        if _PUBLIC.fullmatch(path):
            _require_method(scope, "GET", "HEAD")
            if visitor is None and path == "/":
                exchange.cookie = new_cookie(self.root_path, scope.get("scheme") == "https")
            await self.app(scope, exchange.receive, exchange.send)
        elif not path.startswith(_API):
            raise HTTPException(404, "There is nothing here.")
        elif visitor is None:
            raise HTTPException(403, "Load the page first, with cookies allowed.")
        else:
            await self._private({**scope, VISITOR: visitor}, visitor, exchange)

    async def _private(self, scope: Scope, visitor: str, exchange: _Exchange) -> None:
        """Requests of one visitor."""
        path = str(scope["path"])
        if _EVENTS.fullmatch(path):
            _require_method(scope, "POST")
            await self._event(scope, visitor, exchange)
            return
        if found := _HEARTBEAT.fullmatch(path):
            _require_method(scope, "GET")
            await self._heartbeat(scope, found[1], _own_session(visitor, found[2]), exchange)
            return
        if _UPLOADS.fullmatch(path):
            _require_method(scope, "POST")
        elif path.startswith(_FILE):
            _require_method(scope, "GET", "HEAD")
            if not is_own_file(path.removeprefix(_FILE), self.sessions.folder_of(visitor)):
                raise HTTPException(403, "This file is not yours, or it was deleted.")
        elif path.rstrip("/") == "/gradio_api/queue/data":
            _require_method(scope, "GET")
            query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
            query["session_hash"] = _own_session(visitor, query.get("session_hash"))
            scope["query_string"] = urlencode(query).encode("ascii")
        elif path.rstrip("/") != "/gradio_api/upload_progress":
            raise HTTPException(404, "There is nothing here.")
        await self.app(scope, exchange.receive, exchange.send)

    async def _heartbeat(self, scope: Scope, route: str, key: str, exchange: _Exchange) -> None:
        """A connection that lasts as long as the page; the session ends with the last one."""
        self.sessions.arrived(key)
        path = route + key
        scope = {**scope, "path": path, "raw_path": path.encode("ascii")}
        try:
            await self.app(scope, exchange.receive, exchange.send)
        finally:
            if self.sessions.departed(key):
                await self.queue.clear(key)
                await run_in_threadpool(self.sessions.close, key)

    async def _event(self, scope: Scope, visitor: str, exchange: _Exchange) -> None:
        """An event, which may name only sessions and files of the visitor."""
        content = _json_object(await Request(scope, exchange.receive).body())
        folder = self.sessions.folder_of(visitor)
        content["session_hash"] = _own_session(visitor, content.get("session_hash"))
        paths = check_files(content, lambda path: is_own_file(path, folder))
        # Serialized again: Gradio reads exactly what was checked, even if a key came twice.
        body = json.dumps(content).encode()
        exchange.replacement = body
        headers = MutableHeaders(raw=list(scope["headers"]))
        headers["content-type"], headers["content-length"] = "application/json", str(len(body))
        scope = {**scope, "headers": headers.raw}
        if not scope["path"].startswith("/gradio_api/queue/join"):
            await self.app(scope, exchange.receive, exchange.send)
            return
        async with self._joining:  # no other event may join between the count and the join
            try:
                self.queue.require_place(content.get("fn_index"), visitor)
            except HTTPException:
                self.sessions.uploads.drop(visitor, *map(Path, paths))
                raise
            await self.app(scope, exchange.receive, exchange.send)

    def _known_host(self, given: str) -> bool:
        if self.hosts is None:
            return True
        given = given.lower()
        name = given[1:].split("]")[0] if given.startswith("[") else given.rsplit(":", 1)[0]
        return name in self.hosts


class _Exchange:
    """A request whose body is bounded, and its answer, to which ``HEADERS`` are added."""

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        self._receive, self._send, self._most, self._total = receive, send, most, 0
        self.replacement: bytes | None = None  # passed on in place of the body
        self.answered, self.cookie = False, ""

    async def receive(self) -> Message:
        """The next part of the body; HTTPException when the parts exceed the limit."""
        if self.replacement is not None:
            body, self.replacement = self.replacement, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        self._total += len(message.get("body", b""))
        if self._total > self._most:
            raise HTTPException(413, "The upload is too large.")
        return message

    async def drain(self) -> None:
        """Read and drop the rest, within limits: browsers read an answer only after sending all."""
        more = True
        while more and self._total < 4 * self._most:
            message = await self._receive()
            self._total += len(message.get("body", b""))
            more = message.get("more_body", False)

    async def send(self, message: Message) -> None:
        """Pass on a part of the answer."""
        if message["type"] == "http.response.start":
            self.answered = True
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            for name, value in HEADERS.items():  # beside Gradio's own: browsers obey both
                headers.append(name, value)
            if self.cookie:
                headers.append("set-cookie", self.cookie)
            message = {**message, "headers": headers.raw}
        await self._send(message)


def is_own_file(path: object, folder: Path) -> bool:
    """Whether a path names a file in a visitor's folder, without links and ``..``."""
    if not isinstance(path, str) or "\0" in path:
        return False
    try:
        real = Path(path).resolve(strict=True)
        return path == str(real) and real.is_relative_to(folder) and real.is_file()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a cycle of links
        return False


def check_files(content: Any, owns: Callable[[object], bool]) -> list[str]:
    """The paths that an event names; URLs are removed from it, so that nothing is fetched.

    Gradio opens, copies and fetches any path or URL that an event describes.

    Args:
        content: the content of the event; changed in place.
        owns: whether a path is one of the visitor's files.

    Raises:
        HTTPException: a file is not the visitor's.
    """
    paths: list[str] = []
    pending = [content]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            paths += _checked(item, owns)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return paths


def _checked(item: dict[str, Any], owns: Callable[[object], bool]) -> list[str]:
    """The path in a description of a file, whose URL is removed; none in other values."""
    path, url = item.get("path"), item.pop("url", None)
    if path is None and url is None:
        return []
    if not isinstance(path, str) or not owns(path):
        raise HTTPException(403, "Only files that you uploaded here can be opened.")
    # Gradio's client describes an upload by its path and by the URL under which it is served.
    served = url.partition("/file=")[2] if isinstance(url, str) else None
    if url is not None and (served is None or path not in (served, unquote(served))):
        raise HTTPException(403, "Files are not fetched from other addresses.")
    return [path]


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "The request is not a JSON object.")
    return content


def _own_session(visitor: str, session: object) -> str:
    key = session_key(visitor, session)
    if key is None:
        raise HTTPException(400, "The session has no valid name: reload the page.")
    return key


def _require_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise HTTPException(405, f"Use {' or '.join(methods)}.")
