"""The first answer of the page: a headline and a picture before Gradio's scripts have loaded.

Gradio's page is empty until seventy scripts have filled it. They would also delay the first view,
so they start after it has been painted.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SCRIPTS, _HEAD_END, _CONTENT = b"<script", b"</head>", b"<gradio-app"
_PAUSE = 0.05
"""The pause in seconds in which browsers show the view, before the longer rest is sent."""


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

    Args:
        app: Gradio's app.
        html: the view; it starts the scripts and removes itself when the page is ready.
    """

    def __init__(self, app: ASGIApp, html: str) -> None:
        self.app, self.html = app, html.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request; only the answer to ``GET /`` is changed."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def collect(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                first, rest = with_first_view(body, self.html)
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["content-length"] = str(len(first) + len(rest))
                await send({**start, "headers": headers.raw})
                await send({"type": "http.response.body", "body": first, "more_body": True})
                if rest:
                    await asyncio.sleep(_PAUSE)
                await send({"type": "http.response.body", "body": rest})

        await self.app(scope, receive, collect)
