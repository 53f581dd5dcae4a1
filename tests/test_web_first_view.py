"""What the web page shows before Gradio's scripts have loaded."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("starlette", reason="the web page needs gradio, which brings starlette")

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from convexlift.web.first_view import FirstView

HEAD = "<script>config = '</body>'</script><script src=a.js></script><link rel=stylesheet href=a>"
REST = "<gradio-app></gradio-app></body></html>"
PAGE = f'<html lang="en"><head><title>é</title>{HEAD}</head><body class="é">{REST}'
CHANGED = (
    '<html lang="en"><head><title>é</title></head><body class="é"><p>soon</p>'
    f'<template id="page-scripts">{HEAD}</template>{REST}'
)


def client(answer):
    routes = [Route("/", answer, methods=["GET", "POST"]), Route("/other", answer)]
    return TestClient(FirstView(Starlette(routes=routes), "<p>soon</p>"))


@pytest.mark.parametrize(
    "answer",
    [lambda _: HTMLResponse(PAGE), lambda _: StreamingResponse(iter([PAGE[:40], PAGE[40:]]))],
)
def test_the_first_answer_shows_something_and_keeps_the_scripts_for_later(answer):
    page = client(answer)
    found = page.get("/")
    assert found.text == CHANGED
    assert found.headers["content-length"] == str(len(found.content))
    assert page.get("/other").text == PAGE
    assert page.post("/").text == PAGE


def test_the_view_is_sent_before_the_rest():
    sent = []

    async def send(message):
        sent.append(message.get("body", b"").decode())

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(client(lambda _: HTMLResponse(PAGE)).app(scope, receive, send))
    start, view, rest = sent
    assert not start
    assert view.endswith("<p>soon</p>")
    assert rest.startswith("<template")
    assert view + rest == CHANGED


@pytest.mark.parametrize("page", ["Internal Server Error", PAGE.replace("<gradio-app", "<p"), ""])
def test_another_answer_stays_as_it_is(page):
    found = client(lambda _: HTMLResponse(page, 500)).get("/")
    assert (found.status_code, found.text) == (500, page)
