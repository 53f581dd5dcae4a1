"""Requests to the request filter of the web page, with a stub behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from starlette.exceptions import HTTPException

from convexlift.web.limits import Limits
from convexlift.web.requests import RequestFilter
from convexlift.web.server import LOOPBACK
from convexlift.web.visitors import Sessions, visitor_of


class StubQueue:
    """A queue that is full or not, and notes the sessions whose events are cancelled."""

    def __init__(self, full=False):
        self.full, self.cleared = full, []

    def require_place(self, event, visitor):
        if self.full:
            raise HTTPException(429, "You have 2 runs in the queue.")

    async def clear(self, key):
        self.cleared.append(key)


COOKIE = f"convexlift-visitor={'5' * 32}"
VISITOR = visitor_of(COOKIE)


def ask(
    path="/", host="127.0.0.1:7860", body=b"", method="GET", hosts=LOOPBACK, length=None,
    root=Path("/nowhere"), sessions=None, queue=None, cookie=COOKIE, query=b"", kind="http",
    root_path="",
):  # fmt: skip
    seen = {}

    async def app(scope, receive, send):
        message = await receive()
        seen.update(scope, body=message.get("body"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", host.encode()), (b"cookie", cookie.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    scope = {
        "type": kind, "path": path, "method": method, "headers": headers, "query_string": query,
    }  # fmt: skip
    request_filter = RequestFilter(
        app, sessions or Sessions(root, Limits()), queue or StubQueue(),
        body_bytes=1000, hosts=hosts, root_path=root_path,
    )  # fmt: skip
    asyncio.run(request_filter(scope, receive, send))
    if kind != "http":
        return sent[0]["type"], {}, seen
    return sent[0]["status"], dict(sent[0]["headers"]), seen


def event(**content):
    return json.dumps({"data": [], "fn_index": 1, "session_hash": "abc", **content}).encode()
