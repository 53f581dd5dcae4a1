"""What the web page shows before Gradio's scripts have loaded."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the web page needs gradio, which brings starlette")

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from convexlift.web.first_view import FirstView
from convexlift.web.html import TEMPLATES

PAGE = '<html lang="en"><body class="é"><gradio-app></gradio-app></body></html>'


def client(answer):
    routes = [Route("/", answer, methods=["GET", "POST"]), Route("/other", answer)]
    return TestClient(FirstView(Starlette(routes=routes), "<p>soon</p>"))


@pytest.mark.parametrize(
    "answer",
    [lambda _: HTMLResponse(PAGE), lambda _: StreamingResponse(iter([PAGE[:40], PAGE[40:]]))],
)
def test_the_first_answer_shows_something_before_gradio(answer):
    page = client(answer)
    found = page.get("/")
    assert found.text == PAGE.replace("<gradio-app>", "<p>soon</p><gradio-app>")
    assert found.headers["content-length"] == str(len(found.content))
    assert page.get("/other").text == PAGE
    assert page.post("/").text == PAGE


def test_it_is_hidden_from_screen_readers_and_leaves_by_itself():
    html = TEMPLATES.get_template("first_view.html").render()
    assert 'aria-hidden="true"' in html
    assert "view.remove()" in html
    assert "http" not in html
