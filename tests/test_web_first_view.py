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
    [
        lambda _: HTMLResponse(PAGE),
        lambda _: StreamingResponse(iter([PAGE[:40], PAGE[40:]]), media_type="text/html"),
    ],
)
def test_the_first_answer_shows_something_and_keeps_the_scripts_for_later(answer):
    page = client(answer)
    for _ in range(2):  # the second answer begins with what was kept of the first
        found = page.get("/")
        assert found.text == CHANGED
        assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert page.get("/other").text == PAGE
    assert page.post("/").text == PAGE


def answers(page, count=1):
    """The parts of each answer to ``GET /``, and what happened when, of an app with this page."""
    events = []

    def answer(_):
        events.append("asked")
        return HTMLResponse(page())

    async def send(message):
        events.append(message.get("body", b"").decode())

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    app = client(answer).app
    for _ in range(count):
        asyncio.run(app(scope, receive, send))
    return events


def test_the_view_is_sent_before_the_rest():
    asked, start, view, rest, *second = answers(lambda: PAGE, 2)
    assert asked == "asked"
    assert not start
    assert view.endswith("<p>soon</p>")
    assert rest.startswith("<template")
    assert view + rest == CHANGED
    assert second == [start, view, asked, rest]  # before Gradio is asked


def test_the_first_visitor_need_not_wait_for_the_page_to_be_written():
    asked = []

    def answer(request):
        asked.append(request.url.path)
        return StreamingResponse(iter([PAGE]), media_type="text/html")

    page = client(answer)
    with page:  # the server starts
        assert asked == ["/"]
        assert page.get("/").text == CHANGED
        assert asked == ["/", "/"]


def test_a_page_that_cannot_be_written_does_not_keep_the_server_from_starting():
    def answer(_):
        raise ValueError("no page")

    with client(answer) as page, pytest.raises(ValueError, match="no page"):
        page.get("/")


def test_an_error_after_the_view_is_shown_behind_it():
    pages = iter([PAGE, "Internal Server Error"])
    *_, last = answers(lambda: next(pages), 2)
    assert last == "Internal Server Error"


@pytest.mark.parametrize("page", ["Internal Server Error", PAGE.replace("<gradio-app", "<p"), ""])
def test_another_answer_stays_as_it_is(page):
    found = client(lambda _: HTMLResponse(page, 500)).get("/")
    assert (found.status_code, found.text) == (500, page)
