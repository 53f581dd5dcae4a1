"""Routes of the page's own, in the place of Gradio's: files and drawings that visitors send.

Gradio names uploads by their content, in one folder for all visitors, and keeps the drawings of
everyone in one place without a bound.
"""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from convexlift.web.guard import VISITOR
from convexlift.web.limits import MEGABYTE, PageError
from convexlift.web.pending import MOST_EACH
from convexlift.web.sessions import MOST_LAYERS, Sessions
from convexlift.web.uploads import read_layer
from convexlift.web.visitors import session_key

API = "/gradio_api"


def own_routes(sessions: Sessions) -> list[Route]:
    """The routes; they come before Gradio's."""
    limits, pending = sessions.limits, sessions.pending

    async def upload(request: Request) -> Response:
        paths = []
        async with request.form(max_files=MOST_EACH, max_fields=MOST_EACH) as form:
            files = [item for _, item in form.multi_items() if isinstance(item, UploadFile)]
            if any((file.size or 0) > limits.upload_bytes for file in files):
                most = f"at most {limits.upload_bytes / MEGABYTE:.3g} MB are taken"
                return PlainTextResponse(f"The file is too large: {most}.", status_code=413)
            if not files:
                return PlainTextResponse("There is no file in the request.", status_code=400)
            for file in files:
                visitor, name = request.scope[VISITOR], file.filename or ""
                paths.append(str(await run_in_threadpool(pending.add, visitor, name, file.file)))
        return JSONResponse(paths)

    async def upload_progress(request: Request) -> Response:
        # Uploads are small: their progress is not reported.
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    async def component_server(request: Request) -> Response:
        async with request.form(max_files=1, max_fields=16) as form:
            drawing, kind, name = form.get("file"), form.get("type"), form.get("id")
            key = session_key(request.scope[VISITOR], form.get("session_hash"))
            layer = _layer_number(form.get("index"))
            if form.get("fn_name") != "accept_blobs" or key is None or not isinstance(name, str):
                raise HTTPException(404, "There is no such function.")
            # The background and the composite are the picture itself, which is here already.
            if kind == "layer" and layer is not None and isinstance(drawing, UploadFile):
                content = await drawing.read()
                try:
                    opacity = await run_in_threadpool(read_layer, content, limits)
                    sessions.of(key).keep_drawing(name[:64], layer, opacity)
                except PageError as error:
                    raise HTTPException(400, str(error)) from None
        return JSONResponse(None)

    return [
        Route(f"{API}/upload", upload, methods=["POST"]),
        Route(f"{API}/upload_progress", upload_progress, methods=["GET"]),
        Route(f"{API}/component_server", component_server, methods=["POST"]),
        Route(f"{API}/component_server/", component_server, methods=["POST"]),
    ]


def _layer_number(text: Any) -> int | None:
    with contextlib.suppress(TypeError, ValueError):
        number = int(text)
        if 0 <= number < MOST_LAYERS:
            return number
    return None
