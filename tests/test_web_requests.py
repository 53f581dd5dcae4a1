"""Request filtering of the web page: hosts, routes, sessions, files, sizes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the web page needs gradio, which brings starlette")

from starlette.exceptions import HTTPException
from web_requests import COOKIE, VISITOR, StubQueue, ask, event

from convexlift.web.limits import Limits
from convexlift.web.requests import HEADERS, check_files, is_own_file
from convexlift.web.visitors import Sessions, session_key, visitor_in, visitor_of


def test_requests_of_the_page_pass_and_get_security_headers(tmp_path):
    status, headers, _ = ask()
    assert status == 200
    assert headers[b"content-security-policy"].decode() == HEADERS["content-security-policy"]
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"
    assert b"set-cookie" not in headers
    assert visitor_of(ask(cookie="")[1][b"set-cookie"].decode())
    assert ask(host="localhost")[0] == 200
    assert ask(host="[::1]:7860")[0] == 200
    for path in ("/config", "/theme.css", "/assets/index.js", "/gradio_api/info"):
        assert ask(path, cookie="")[0] == 200
    own = tmp_path / VISITOR / "x.png"
    own.parent.mkdir()
    own.write_bytes(b"x")
    file = {"path": str(own), "url": f"http://127.0.0.1/gradio_api/file={own}"}
    status, _, seen = ask(
        "/gradio_api/queue/join", body=event(data=[file]), method="POST", root=tmp_path
    )
    assert status == 200
    passed = json.loads(seen["body"])
    assert passed["data"] == [{"path": str(own)}]  # the URL is removed: it cannot be fetched
    assert passed["session_hash"] == f"{VISITOR}-abc"
    assert dict(seen["headers"])[b"content-length"] == str(len(seen["body"])).encode()


def test_the_root_path_works_with_and_without_a_proxy():
    for path in ("/gradio_api/heartbeat/abc", "/a/b/gradio_api/heartbeat/abc"):
        seen = ask(path, root_path="/a/b")[2]
        assert seen["path"] == f"/gradio_api/heartbeat/{VISITOR}-abc"
    cookie = ask("/a/b/", cookie="", root_path="/a/b")[1][b"set-cookie"].decode()
    assert "Path=/a/b;" in cookie
    assert ask("/a/b/gradio_api/file=/etc/passwd", root_path="/a/b")[0] == 403
    assert ask("/a/b/openapi.json", root_path="/a/b")[0] == 404


def test_session_names_are_derived_from_the_cookie(tmp_path):
    sessions, queue, key = Sessions(tmp_path, Limits()), StubQueue(), f"{VISITOR}-abc"
    session, closed = sessions.of(key), []
    sessions.on_close = closed.append
    seen = ask("/gradio_api/heartbeat/abc", sessions=sessions, queue=queue)[2]
    assert seen["path"].endswith(f"/{key}")
    assert closed == queue.cleared == [key]  # the session ends with its connection
    assert not session.folder.exists()
    seen = ask("/gradio_api/queue/data", query=b"session_hash=abc&session_hash=abc")[2]
    assert seen["query_string"] == f"session_hash={VISITOR}-abc".encode()
    for bad in ("", "a-b", "../x", "a" * 65, "a%2fb"):
        assert ask(f"/gradio_api/heartbeat/{bad}")[0] in (400, 404), bad
        assert ask("/gradio_api/queue/data", query=f"session_hash={bad}".encode())[0] == 400, bad
        assert ask("/gradio_api/cancel", method="POST", body=event(session_hash=bad))[0] == 400


def test_other_requests_are_refused():
    assert ask(host="evil.example")[0] == 421
    assert ask(host="evil.example", hosts=None)[0] == 200
    for path in ("file=http://10.0.0.1/secret", "file=/etc/passwd", "file="):
        assert ask(f"/gradio_api/{path}")[0] == 403
    for path in ("/gradio_api/proxy=https://example.org", "/openapi.json", "/gradio_api/file/a"):
        status, headers, _ = ask(path)
        assert status == 404
        assert b"x-frame-options" in headers
    assert ask("/gradio_api/upload", method="POST", length=10**9)[0] == 413
    assert ask("/gradio_api/upload", method="POST", cookie="")[0] == 403
    assert ask("/gradio_api/upload", method="GET")[0] == 405
    body = event(data=[[{"path": " HTTPS://example.org/x.png"}]])
    assert ask("/gradio_api/queue/join", body=body, method="POST")[0] == 403
    assert ask("/gradio_api/queue/join", body=bytes(10**5), method="POST")[0] == 413
    for body in (b"", b"[]", b"{", b"[" * 50_000, b"null"):
        status = ask("/gradio_api/queue/join", body=body, method="POST")[0]
        assert status == 400, body[:9]
    # A body that grows beyond the limit on its way is refused, whatever its header said.
    assert ask("/gradio_api/upload", method="POST", body=bytes(10**5))[0] == 413
    assert ask(kind="websocket")[0] == "websocket.close"


def test_uploads_of_refused_events_are_deleted(tmp_path):
    sessions = Sessions(tmp_path, Limits())
    own = sessions.uploads.add(VISITOR, "x.png", io.BytesIO(b"x"))
    body = event(data=[{"path": str(own)}])
    full = StubQueue(full=True)
    assert ask("/gradio_api/queue/join", body=body, method="POST", sessions=sessions)[0] == 200
    assert own.exists()
    answer = ask("/gradio_api/queue/join", body=body, method="POST", sessions=sessions, queue=full)
    assert answer[0] == 429
    assert not own.exists()


def test_only_real_paths_in_the_folder_are_own_files(tmp_path):
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    file, outside = mine / "deep" / "a.png", tmp_path / "b.png"
    for path in (file, outside):
        path.write_bytes(b"x")
    (mine / "link.png").symlink_to(outside)
    (mine / "folder").symlink_to(tmp_path)
    (mine / "circle").symlink_to(mine / "circle")
    assert is_own_file(str(file), mine)
    for path in (
        *(
            outside,
            mine,
            mine / "deep",
            mine / "none",
            mine / "link.png",
            mine / "folder" / "b.png",
        ),
        *(f"{mine}/../b.png", f"{mine}/deep/../deep/a.png", f"{mine}//deep/a.png", mine / "circle"),
        *(f"{file}\0.png", f"file://{file}", "", ".", None, 7, [str(file)], "a" * 5000),
    ):
        name = path if not isinstance(path, Path) else str(path)
        assert not is_own_file(name, mine), path


def test_file_descriptions_are_found_at_any_depth():
    for content in (
        {"path": "x"},
        [{"a": [{"b": {"path": "x", "url": None}}]}],
        {"url": "http://127.0.0.1/x"},
        {"path": None, "url": "x"},
        {"path": ["x"]},
    ):
        with pytest.raises(HTTPException):
            check_files(content, lambda path: False)
    with pytest.raises(HTTPException):
        check_files({"path": "x", "url": "http://127.0.0.1/y"}, lambda path: True)
    content = {"a": {"path": "/x y", "url": "http://h/gradio_api/file=/x%20y"}, "path": None}
    assert check_files(content, lambda path: True) == ["/x y"]
    assert content == {"a": {"path": "/x y"}, "path": None}


def test_visitors_are_identified_by_their_cookie():
    assert visitor_of(f"a=b; {COOKIE}; c=d") == VISITOR
    assert "5" * 16 not in VISITOR
    for cookies in ("", "convexlift-visitor=", "convexlift-visitor=../..", "\x00", f"x{COOKIE}"):
        assert visitor_of(cookies) is None
    assert visitor_in(session_key(VISITOR, "abc")) == VISITOR
    for key in ("../two", "", "a-b"):
        assert len(visitor_in(key)) == 32
        assert "." not in visitor_in(key)
