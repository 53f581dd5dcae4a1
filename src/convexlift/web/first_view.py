"""The first answer of the page: a headline and a picture before Gradio's scripts have loaded.

Gradio sends an empty page, and seventy scripts that fill it. What the first answer shows meanwhile
comes from the configuration that Gradio puts into the same answer.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BEFORE = b"<gradio-app"


class FirstView:
    """ASGI middleware that inserts HTML into the page.

    Args:
        app: Gradio's.
        html: removes itself once the page is there.
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
                whole = body.replace(_BEFORE, self.html + _BEFORE, 1)
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["content-length"] = str(len(whole))
                await send({**start, "headers": headers.raw})
                await send({"type": "http.response.body", "body": whole})

        await self.app(scope, receive, collect)
