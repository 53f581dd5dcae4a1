"""Requests to the guard of the web page, with nothing behind it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from convexlift.web.guard import LOOPBACK, Guard
from convexlift.web.payloads import Refused
from convexlift.web.visitors import visitor_of


class Policy:
    """Visitors' folders below a folder, and a queue that is full or not."""

    def __init__(self, root=Path("/nowhere"), full=False):
        self.root, self.full, self.pages = root, full, []

    def folder_of(self, visitor):
        return self.root / visitor

    def arrived(self, key):
        self.pages.append(("arrived", key))

    async def departed(self, key):
        self.pages.append(("departed", key))

    def require_place(self, event, visitor):
        if self.full:
            raise Refused(429, "You have 2 runs in the queue.")

    def discard(self, visitor, paths):
        for path in paths:
            os.unlink(path)


COOKIE = f"convexlift-visitor={'5' * 32}"
VISITOR = visitor_of(COOKIE)


def ask(
    path="/", host="127.0.0.1:7860", body=b"", method="GET", hosts=LOOPBACK, length=None,
    policy=None, cookie=COOKIE, query=b"", kind="http",
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
    guard = Guard(app, 1000, hosts, policy or Policy(), root_path)
    asyncio.run(guard(scope, receive, send))
    if kind != "http":
        return sent[0]["type"], {}, seen
    return sent[0]["status"], dict(sent[0]["headers"]), seen


def event(**content):
    return json.dumps({"data": [], "fn_index": 1, "session_hash": "abc", **content}).encode()
