"""Sessions of the web page, folders of servers, and the server."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from marks import require_gradio
from typer.testing import CliRunner
from web_runs import crop, long_job

from convexlift.cli import app
from convexlift.solvers.solution import Status
from convexlift.web.limits import Limits, PageError
from convexlift.web.run import Run
from convexlift.web.server import NEEDED, ServerOptions, listen, remove_leftovers, server_folder

pytest.importorskip("starlette", reason="the web page needs gradio, which brings starlette")

from web_requests import ask

from convexlift.web.visitors import Sessions
from soak.page_visitor import wait_until

pydicom = pytest.importorskip("pydicom")

pytestmark = pytest.mark.single_precision


# Sessions


def test_sessions_are_separate_and_leave_nothing(tmp_path):
    sessions = Sessions(tmp_path, Limits(sessions=3))
    one, two = sessions.of("one"), sessions.of("../two")
    assert one is sessions.of("one")
    one.pictures["denoise"] = crop()
    assert "denoise" not in two.pictures
    for session in (one, two):
        assert session.folder.parent.parent == tmp_path  # whatever the key says
        assert session.folder.stat().st_mode & 0o077 == 0
    first = one.new_folder("denoise")
    (first / "a.png").write_bytes(b"x")
    one.new_folder("denoise"), one.new_folder("ct"), one.new_folder("ct"), one.new_folder("ct")
    assert first.exists()  # another tab's results do not count
    one.new_folder("denoise")
    assert not first.exists()  # only the last two of a tab are kept
    canvas = one.new_canvas()
    canvas.write_bytes(b"x")
    assert one.new_canvas() != canvas
    assert not canvas.exists()
    with ThreadPoolExecutor(1) as executor:
        run = Run(long_job(), 60.0, executor)
        one.start(run)
        assert wait_until(lambda: run.state.prepared, 60.0)
        sessions.close("one")
        assert run.result(60.0).status is Status.STOPPED
    assert not one.folder.exists()
    assert two.folder.exists()
    for key in "abc":
        sessions.of(key)
    assert not two.folder.exists()  # idle for longest
    sessions.close_all()
    assert not list(tmp_path.iterdir())


def test_idle_sessions_are_forgotten(tmp_path):
    sessions = Sessions(tmp_path, Limits(idle_seconds=0.05))
    ended = []
    sessions.on_close = ended.append
    old = sessions.of("old")
    time.sleep(0.1)
    sessions.sweep()  # even if no other event comes
    assert not old.folder.exists()
    assert ended == ["old"]


def test_sessions_end_with_the_last_connection_of_their_page(tmp_path):
    sessions = Sessions(tmp_path, Limits())
    session = sessions.of("key")
    sessions.arrived("key")
    sessions.arrived("key")  # after a network failure that the server has not noticed yet
    assert not sessions.departed("key")
    assert sessions.departed("key")
    sessions.close("key")
    with pytest.raises(PageError, match="closed"):
        sessions.of("key")  # a late event creates no new session
    with pytest.raises(PageError, match="closed"):
        session.new_folder("ct")  # nor does a result
    assert not list(tmp_path.iterdir())
    sessions.arrived("key")
    assert sessions.of("key").folder.exists()


def test_uploads_belong_to_one_visitor_and_are_bounded(tmp_path):
    sessions = Sessions(tmp_path, Limits(sessions=6))
    uploads = sessions.uploads
    paths = [uploads.add("a" * 32, "x.png", io.BytesIO(b"x")) for _ in range(9)]
    assert [path.exists() for path in paths] == [False, *[True] * 8]
    other = uploads.add("b" * 32, "x.png", io.BytesIO(b"x"))
    assert uploads.holds("b" * 32, other)
    assert not uploads.holds("a" * 32, other)
    assert not uploads.holds("a" * 32, paths[0])
    for i in range(6):  # the oldest ones are deleted, whoever sent them
        uploads.add(f"{i:032}", "x.png", io.BytesIO(b"x"))
    assert [path.exists() for path in paths] == [False] * 4 + [True] * 5
    uploads.drop_all("b" * 32)
    assert not (tmp_path / ("b" * 32)).exists()

    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        uploads.add("c" * 32, "x.png", Broken())
    assert not list((tmp_path / ("c" * 32) / "uploads").iterdir())


def test_a_second_run_of_a_visitor_stops_the_first(tmp_path):
    session = Sessions(tmp_path, Limits()).of("a")
    with ThreadPoolExecutor(2) as executor:
        first, second = (Run(long_job(), 60.0, executor) for _ in range(2))
        session.start(first)
        assert wait_until(lambda: first.state.prepared, 60.0)
        session.start(second)
        assert first.result(60.0).status is Status.STOPPED
        assert wait_until(lambda: second.state.prepared, 60.0)
        assert session.stop()
        assert second.result(60.0).status is Status.STOPPED
        assert not session.stop()


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_run_that_is_stopped_while_it_starts_does_not_begin(tmp_path, end):
    session, busy = Sessions(tmp_path, Limits()).of("a"), threading.Event()

    class Slow(ThreadPoolExecutor):
        def submit(self, *arguments):
            getattr(session, end)()
            return super().submit(*arguments)

    with Slow(1) as executor:
        ThreadPoolExecutor.submit(executor, busy.wait, 60.0)
        run = Run(long_job(tolerance=0.5), 60.0, executor)
        session.start(run)
        busy.set()
        with pytest.raises(PageError, match="before it began"):
            run.result(60.0)


def test_a_closed_session_starts_nothing(tmp_path):
    session = Sessions(tmp_path, Limits()).of("a")
    session.close()
    with ThreadPoolExecutor(1) as executor:
        run = Run(long_job(tolerance=0.5), 60.0, executor)
        with pytest.raises(PageError, match="The page was closed"):
            session.start(run)
    assert not session.stop()


def test_a_session_does_not_keep_the_solution_of_an_ended_run(tmp_path):
    session = Sessions(tmp_path, Limits()).of("a")
    with ThreadPoolExecutor(1) as executor:
        first, second = (Run(long_job(tolerance=0.5), 60.0, executor) for _ in range(2))
        session.start(first)
        first.result(60.0)
        session.start(second)
        session.release(first)  # it is not the current one
        assert session.stop()
        session.start(second)
        session.release(second)
        assert not session.stop()


# Folders of servers


def test_folders_of_killed_servers_are_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from convexlift.web.server import server_folder\n"
        "with server_folder() as root:\n"
        "    (root / 'upload.png').write_bytes(b'x'); print(root, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    start = [sys.executable, "-c", code, str(tmp_path)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(start, **streams) as killed, subprocess.Popen(start, **streams) as alive:
        left, kept = (Path(p.stdout.readline().strip()) for p in (killed, alive))
        killed.kill()
        killed.wait(20)
        assert left.exists()
        (tmp_path / "convexlift-web-link").symlink_to(tmp_path)
        (tmp_path / "convexlift-web-young").mkdir()  # of a server that is just starting
        (tmp_path / "other").mkdir()
        with server_folder() as root:
            assert not left.exists()
            assert (kept / "upload.png").exists()
            remove_leftovers(tmp_path)
            assert root.exists()
            assert root.stat().st_mode & 0o077 == 0
        assert not root.exists()
        assert (tmp_path / "other").exists()
        assert (tmp_path / "convexlift-web-young").exists()
        alive.stdin.close()
        alive.wait(20)
    assert not kept.exists()


# Addresses


def answers(called, **options):
    return ask(host=called, hosts=ServerOptions(**options).hosts)[0] == 200


def test_the_server_is_local_by_default():
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost", "LocalHost"):
        assert ServerOptions(host=host).local, host
    for host in ("0.0.0.0", "::", "192.0.2.7", "images.example.org"):
        assert not ServerOptions(host=host).local, host


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]", "[::1]:7860"],
)
def test_names_of_this_machine_are_accepted(host):
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


def test_given_names_are_accepted():
    both = ("images.example.org", "Other.Example")
    for host in ("images.example.org", "IMAGES.example.org:8443", "other.example"):
        assert answers(host, names=both)
    assert answers("127.0.0.2:7860", host="127.0.0.2")
    # A public server cannot know all its names; once some are given, only those count.
    assert answers("evil.example", host="0.0.0.0")
    assert not answers("evil.example", host="0.0.0.0", names=both)
    assert answers("images.example.org", host="0.0.0.0", names=both)


def test_the_url_of_the_page():
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
def test_bad_addresses_are_errors_of_one_sentence(options, said):
    require_gradio()
    result = CliRunner().invoke(app, ["serve", "--no-open", *options])
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert said in " ".join(result.output.split())


def test_a_port_in_use_is_an_error():
    require_gradio()
    with listen(ServerOptions(port=0)) as place:
        port = place.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--no-open", "--port", str(port)])
    assert result.exit_code == 2
    assert f"port {port}: address already in use; port 0 takes any free one." in result.output


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_server_leaves_nothing_behind(ending, tmp_path):
    require_gradio()
    with subprocess.Popen(
        [sys.executable, "-m", "convexlift", "serve", "--port", "0", "--no-open"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        line = process.stdout.readline()
        folders = list(tmp_path.iterdir())
        process.send_signal(ending)
        try:
            status = process.wait(60)
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


def test_who_may_use_a_regularizer_is_said_where_it_is_chosen():
    require_gradio()
    from convexlift.web.run import shipped
    from convexlift.web.tabs import permission, regularizer_choices

    choices = {
        value: label
        for task in ("gaussian-denoising", "inpainting", "salt-and-pepper", "ct")
        for label, value in regularizer_choices(task, (256, 256))
    }
    for name, label in choices.items():
        card = None if name == "tv" else shipped()[name].card
        restricted = card is not None and "research" in card.license
        assert ("research only" in label) == restricted, label
        assert ("any use" in label) == (not restricted), label
    assert choices["photo-open"] == "photo-open (any use)"
    assert choices["ct"] == "ct (any use, cite)"  # CC BY
    assert permission("all rights reserved") == "see its card"
