"""The first answer of the page: a headline and a picture before Gradio's scripts have loaded.

Gradio's page is empty until seventy scripts have filled it. They would also delay the first view,
so they start after it has been painted.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SCRIPTS, _HEAD_END, _CONTENT = b"<script", b"</head>", b"<gradio-app"
_PAUSE = 0.05
"""The pause in seconds in which browsers show the view, before the longer rest is sent."""
_LONGEST = 10.0
"""The most seconds for which the start of the server waits for the page."""
_REQUEST: Scope = {
    "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/",
    "raw_path": b"/", "root_path": "", "query_string": b"", "headers": [(b"host", b"localhost")],
    "server": ("localhost", 80), "client": ("localhost", 0),
}  # fmt: skip


def with_first_view(page: bytes, view: bytes) -> tuple[bytes, bytes]:
    """Gradio's page with the view at the start of its body: the parts before and after its end.

    Scripts and style sheets of the head follow the view in a template, where browsers neither load
    nor run them. A page that is not Gradio's stays as it is, in the first part.
    """
    start, end, content = (page.find(mark) for mark in (_SCRIPTS, _HEAD_END, _CONTENT))
    if not 0 <= start < end < content:
        return page, b""
    scripts = b'<template id="page-scripts">' + page[start:end] + b"</template>"
    return page[:start] + page[end:content] + view, scripts + page[content:]


class FirstView:
    """ASGI middleware that puts a first view into the page.

    Gradio takes 15 ms to write its page, and 0.1 s beside a browser that is just starting. The part
    with the view is always the same, so it is kept, and sent before Gradio is asked for the rest.

    Args:
        app: Gradio's app.
        html: the view; it starts the scripts and removes itself when the page is ready.
    """

    def __init__(self, app: ASGIApp, html: str) -> None:
        self.app, self.html = app, html.encode()
        self._kept: list[Message] = []  # the start of the answer, and the part with the view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request; only the answer to ``GET /`` is changed."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._preparing(send))
        elif scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self.app(scope, receive, send)
        elif self._kept:
            await self._show(send)
            _, page = await self._answer(scope, receive)
            _, rest = with_first_view(page, self.html)
            await send(_body(rest or page))
        else:
            start, page = await self._answer(scope, receive)
            first, rest = with_first_view(page, self.html)
            if not rest:
                await send(start)
                await send(_body(page))
                return
            headers = MutableHeaders(raw=list(start["headers"]))
            del headers["content-length"]  # unknown when the next answer starts
            self._kept = [{**start, "headers": headers.raw}, _body(first, more=True)]
            await self._show(send)
            await send(_body(rest))

    async def _show(self, send: Send) -> None:
        """Send the view, and give the browser time to show it."""
        for message in self._kept:
            await send(message)
        await asyncio.sleep(_PAUSE)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
        """The start and the body of the app's answer."""
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal start, body
            start = message if message["type"] == "http.response.start" else start
            body += message.get("body", b"")

        await self.app(scope, receive, collect)
        return start, body

    def _preparing(self, send: Send) -> Send:
        """Ask for the page once before the server answers: its first visitor need not wait."""
        messages: asyncio.Queue[Message] = asyncio.Queue()

        async def receive() -> Message:
            return await messages.get()  # waits when there is none: this client does not leave

        async def ignore(message: Message) -> None:
            pass

        async def prepare(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await messages.put({"type": "http.request", "body": b"", "more_body": False})
                with contextlib.suppress(Exception):  # the first visitor will see it
                    await asyncio.wait_for(self(_REQUEST, receive, ignore), _LONGEST)
            await send(message)

        return prepare


def _body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}
