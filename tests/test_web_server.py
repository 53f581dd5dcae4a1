"""Around the web page: sessions that are apart, the guard, the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner
from web_runs import crop, long_job

from convexlift.cli import app
from convexlift.web.guard import HEADERS, LOOPBACK, Guard, names_other_server
from convexlift.web.limits import Limits
from convexlift.web.running import Run
from convexlift.web.server import NEEDED, ServerOptions, listen
from convexlift.web.sessions import Sessions

pydicom = pytest.importorskip("pydicom")


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


# Sessions


def test_sessions_are_apart_and_leave_nothing(tmp_path):
    sessions = Sessions(tmp_path, Limits(sessions=3))
    one, two = sessions.of("one"), sessions.of("../two")
    assert one is sessions.of("one")
    one.uploads["denoise"] = crop()
    assert "denoise" not in two.uploads
    for session in (one, two):
        assert session.folder.parent == tmp_path  # whatever the key says
        assert session.folder.stat().st_mode & 0o077 == 0
    (one.new_folder() / "a.png").write_bytes(b"x")
    first = one.folder / "result-1"
    one.new_folder(), one.new_folder()
    assert not first.exists()  # only the last two results are kept
    canvas = one.new_canvas()
    canvas.write_bytes(b"x")
    assert one.new_canvas() != canvas
    assert not canvas.exists()
    stopped = []
    one.begin(lambda: stopped.append(1))
    sessions.close("one")
    assert stopped
    assert not one.folder.exists()
    assert two.folder.exists()
    for key in "abc":
        sessions.of(key)
    assert not two.folder.exists()  # idle for longest
    sessions.close_all()
    assert not list(tmp_path.iterdir())


def test_idle_sessions_are_forgotten(tmp_path):
    sessions = Sessions(tmp_path, Limits(idle_seconds=0.05))
    old = sessions.of("old")
    (tmp_path / "tmpabc").write_bytes(b"half an upload")
    time.sleep(0.1)
    sessions.of("new")
    assert not old.folder.exists()
    assert not (tmp_path / "tmpabc").exists()


def test_a_second_run_of_a_visitor_stops_the_first(tmp_path):
    session = Sessions(tmp_path, Limits()).of("a")
    first = session.start(Run(long_job(), 60.0))
    second = session.start(Run(long_job(), 60.0))
    assert first.join(20.0)
    assert session.stop()
    assert second.join(20.0)
    assert not session.stop()


# The guard


def ask(path="/", host="127.0.0.1:7860", body=b"", method="GET", hosts=LOOPBACK, length=None):
    seen = {}

    async def app(scope, receive, send):
        message = await receive()
        seen["type"] = message["type"]
        seen["body"] = message.get("body")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", host.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    asyncio.run(Guard(app, 1000, hosts)(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), seen


def test_the_guard_lets_visitors_pass_with_its_headers():
    status, headers, _ = ask()
    assert status == 200
    assert headers[b"content-security-policy"].decode() == HEADERS["content-security-policy"]
    assert ask(host="localhost")[0] == 200
    assert ask(host="[::1]:7860")[0] == 200
    body = json.dumps({"data": [{"path": "/tmp/x.png", "url": "http://127.0.0.1/x"}]}).encode()
    status, _, seen = ask("/gradio_api/queue/join", body=body, method="POST")
    assert (status, seen["body"]) == (200, body)


def test_the_guard_refuses():
    assert ask(host="evil.example")[0] == 421
    assert ask(host="evil.example", hosts=None)[0] == 200
    assert ask("/gradio_api/file=http://10.0.0.1/secret")[0] == 403
    assert ask("/gradio_api/proxy=https://example.org")[0] == 403
    assert ask("/gradio_api/upload", method="POST", length=10**9)[0] == 413
    body = json.dumps({"data": [[{"path": " HTTPS://example.org/x.png"}]]}).encode()
    assert names_other_server(body)
    assert ask("/gradio_api/queue/join", body=body, method="POST")[0] == 403
    assert ask("/gradio_api/queue/join", body=bytes(10**5), method="POST")[0] == 413
    # A body that grows beyond the limit on its way is cut off, whatever its header said.
    assert (
        ask("/gradio_api/upload", method="POST", body=bytes(10**5))[2]["type"] == "http.disconnect"
    )


# Where the server is


def answers(called, **options):
    return ask(host=called, hosts=ServerOptions(**options).hosts)[0] == 200


def test_the_server_is_for_this_machine_unless_told_otherwise():
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost", "LocalHost"):
        assert ServerOptions(host=host).local, host
    for host in ("0.0.0.0", "::", "192.0.2.7", "images.example.org"):
        assert not ServerOptions(host=host).local, host


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]", "[::1]:7860"],
)
def test_names_of_this_machine(host):
    assert answers(host)
    assert answers(host, names=("images.example.org",))  # for the proxy's owner


@pytest.mark.parametrize(
    "host",
    [
        *("", ":7860", "evil.example", "evil.example:7860", "localhost.evil.example"),
        *(
            "evil.example@localhost",
            "localhost@evil.example",
            "192.0.2.7",
            "127.0.0.1.evil.example",
        ),
        *("images.example.org", "sub.images.example.org", "[::2]:7860", "[evil.example]"),
    ],
)
def test_other_names_are_refused(host):
    assert not answers(host)
    if host != "images.example.org":
        assert not answers(host, names=("images.example.org",))


def test_names_that_were_given():
    both = ("images.example.org", "Other.Example")
    for host in ("images.example.org", "IMAGES.example.org:8443", "other.example"):
        assert answers(host, names=both)
    assert answers("127.0.0.2:7860", host="127.0.0.2")
    # Who is seen by others cannot know all names; who is told some goes by them.
    assert answers("evil.example", host="0.0.0.0")
    assert not answers("evil.example", host="0.0.0.0", names=both)
    assert answers("images.example.org", host="0.0.0.0", names=both)


def test_where_the_owner_finds_the_page():
    assert ServerOptions().url(7860) == "http://127.0.0.1:7860/"
    assert ServerOptions(host="::1").url(80) == "http://[::1]:80/"
    assert ServerOptions(host="0.0.0.0").url(80) == "http://localhost:80/"
    assert ServerOptions(host="::").url(80) == "http://localhost:80/"
    for path in ("/a/b", "/a/b/"):
        assert ServerOptions(root_path=path).url(80) == "http://127.0.0.1:80/a/b/"
    assert not ServerOptions(root_path="/").root_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--root-path", "convexlift"], "a path such as /convexlift"),
        (["--root-path", "https://images.example.org/convexlift"], "a path such as /convexlift"),
        (["--root-path", "/a//b"], "a path such as /convexlift"),
        (["--name", "images.example.org:8443"], "without scheme, port and path"),
        (["--name", "https://images.example.org"], "without scheme, port and path"),
        (["--name", ""], "without scheme, port and path"),
        (["--host", "192.0.2.7", "--port", "0"], "cannot listen at 192.0.2.7, port 0: "),
    ],
)
def test_places_that_are_none(options, said):
    pytest.importorskip("gradio")
    result = CliRunner().invoke(app, ["serve", "--no-open", *options])
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert said in " ".join(result.output.split())


def test_a_port_that_is_taken():
    pytest.importorskip("gradio")
    with listen(ServerOptions(port=0)) as place:
        port = place.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--no-open", "--port", str(port)])
    assert result.exit_code == 2
    assert f"port {port}: address already in use; port 0 is any that is free." in result.output


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_without_a_trace(ending, tmp_path):
    pytest.importorskip("gradio")
    with subprocess.Popen(
        [sys.executable, "-m", "convexlift", "serve", "--port", "0", "--no-open"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        line = process.stdout.readline()
        folders = list(tmp_path.iterdir())
        process.send_signal(ending)
        try:
            status = process.wait(20)
        finally:
            process.kill()
        errors = process.stderr.read()
    assert "127.0.0.1" in line
    assert [folder.name[:14] for folder in folders] == ["convexlift-web"]
    assert (status, errors) == (0, "")
    assert not list(tmp_path.iterdir())


def test_without_gradio_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["serve", "--no-open"])
    assert result.exit_code == 2
    assert NEEDED in result.output
    assert "Traceback" not in result.output
