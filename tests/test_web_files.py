"""Requests to the web page may name files of their own visitor only."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from marks import require_gradio
from PIL import Image
from web_files import contents, linked, listening, png, server_root, strange_files
from web_runs import two_widths

from convexlift.files.formats import EXPORTS
from soak.page_visitor import API, PageVisitor, file_data, result_path, serving, wait_until

require_gradio()

from convexlift.web.uploads import PICTURES, SCANS  # noqa: E402

SLOW = {
    "denoise-choice": "camera", "denoise-kind": "salt-and-pepper", "denoise-level": 0.5,
    "denoise-regularizer": "photo-any-size",
}  # fmt: skip
"""A run that takes seconds."""
UPLOADS = {
    "denoise": "denoise-file", "inpaint": "inpaint-file", "mask": "inpaint-mask-file",
    "ct": "ct-file",
}  # fmt: skip
EDITOR = ("background", "layers", "composite")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "--max-upload", "1", "--max-seconds", "20", "--runs", "1") as (address, _):
        yield address
    errors = (folder / "errors.txt").read_text()
    assert "ASGI" not in errors, errors  # Gradio's own messages on bad requests are there
    assert [path.name for path in folder.iterdir()] == ["errors.txt"]


@pytest.fixture
def visitor(server):
    visitor = PageVisitor(server)
    visitor.stay()
    yield visitor
    visitor.leave()


other = visitor  # pytest makes one visitor for each name


@pytest.fixture(scope="module")
def listener():
    with listening() as found:
        yield found


@pytest.mark.parametrize("event", UPLOADS)
@pytest.mark.sampled(5)
def test_events_open_own_uploads_only(event, visitor, other, folder, tmp_path, listener):
    element, kind = UPLOADS[event], "upload"
    strange = strange_files(tmp_path, folder, other, listener)
    strange["link"] = linked(visitor, tmp_path)
    mine = visitor.send("mine.png", png()).json()[0]
    strange["other address"] = file_data(mine, url=listener[0])
    before = contents(folder)
    for name, description in strange.items():
        nested = [[description], {"deep": [description]}] if event == "denoise" else []
        for value in (description, *nested):
            answer = visitor.join(element, kind, {element: value})
            assert (answer.status_code, "event_id" in answer.text) == (403, False), name
    assert contents(folder) == before  # nothing was copied
    assert not listener[1]  # and nothing was fetched
    assert Path(mine).exists()
    success, text = visitor.ask(element, kind, {element: file_data(mine)})
    assert success
    assert event == "ct" or "did not arrive" not in text
    assert not Path(mine).exists()


@pytest.mark.parametrize("part", EDITOR)
@pytest.mark.sampled(3)
def test_the_brush_reads_own_drawings_only(part, visitor, other, folder, tmp_path, listener):
    strange = strange_files(tmp_path, folder, other, listener)
    strange["link"] = linked(visitor, tmp_path)
    before = contents(folder)
    for name, description in strange.items():
        value = {"background": None, "layers": [], "composite": None, "id": None}
        value[part] = [description] if part == "layers" else description
        body = {"inpaint-mask": "brush", "inpaint-editor": value}
        assert visitor.join("inpaint-start", "click", body).status_code == 403, name
    assert contents(folder) == before
    assert not listener[1]


def test_every_event_is_checked(visitor, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png())
    for i, event in enumerate(visitor.config["dependencies"]):
        body = {"fn_index": event["id"], "session_hash": visitor.session}
        body["data"] = [file_data(str(secret))] * max(1, len(event["inputs"]))
        for route in ("queue/join", "run/predict"):
            assert visitor.http.post(f"{API}/{route}", json=body).status_code == 403
        if i % 4:  # what follows is refused before anybody looks which event it is
            continue
        for route in ("queue/join/", "run/predict/"):
            assert visitor.http.post(f"{API}/{route}", json=body).status_code == 403
        # In the event's data; and twice under the same key, where the first is harmless.
        hidden = {**body, "data": [], "event_data": {"value": file_data(str(secret))}}
        assert visitor.http.post(f"{API}/queue/join", json=hidden).status_code == 403
        twice = json.dumps({**body, "data": []})[:-1] + f', "data": {json.dumps(body["data"])}}}'
        kind = {"content-type": "application/json"}
        answer = visitor.http.post(f"{API}/queue/join", content=twice, headers=kind)
        assert answer.status_code == 403


def test_an_upload_is_read_only_once(visitor):
    path = visitor.send("mine.png", png()).json()[0]
    values = {"denoise-file": file_data(path)}
    assert visitor.ask("denoise-file", "upload", values)[0]
    assert visitor.join("denoise-file", "upload", values).status_code == 403


def finished_run(visitor):
    """The messages of a run on an upload."""
    assert visitor.upload("denoise-file", "mine.png", png(32))[0]
    success, text = visitor.ask("denoise-start", "click", {"denoise-mode": "own"})
    assert success
    return text


def test_an_upload_is_restored_as_it_is_unless_its_owner_says_that_it_is_clean(visitor):
    noisy = np.clip(np.random.default_rng(0).normal(128, 25, (32, 32)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "PNG")
    success, text = visitor.upload("denoise-file", "mine.png", file.getvalue())
    assert success
    assert '"own"' in text  # the page switches to restoring it

    def asked(**values):
        values = {f"denoise-{name}": value for name, value in values.items()}
        success, text = visitor.ask("denoise-start", "click", values)
        assert success
        record = visitor.file(result_path(text, "json")).json()
        assert record["input"] == "mine.png"
        return record, text

    record, text = asked(mode="own", choice="camera")  # the example is not meant
    assert "simulate" not in record["settings"]
    assert "psnr" not in record
    assert "PSNR" not in text
    assert " dB" not in text
    record, text = asked(mode="try", choice="your upload")
    assert record["settings"]["simulate"] is True
    assert record["psnr_before"] == pytest.approx(20, abs=0.5)
    assert "Compared with the clean picture" in text


def test_nothing_is_restored_before_an_upload(visitor):
    for name in ("denoise", "inpaint", "ct"):
        values = {f"{name}-mode": "own"}
        assert "You have not uploaded a picture" in visitor.ask(f"{name}-start", "click", values)[1]
        success, text = visitor.ask(f"{name}-mode", "input", values)
        assert success
        assert "Drop your file into the box" in text


def test_results_are_for_their_visitor_only(visitor, other, server):
    text = finished_run(visitor)
    for ending in ("zip", "png", "json"):
        path = result_path(text, ending)
        mine = visitor.file(path)
        assert mine.status_code == 200, ending
        assert mine.headers["x-frame-options"] == "SAMEORIGIN"
        assert other.file(path).status_code == 403, ending
        assert httpx.get(f"{server}{API}/file={path}").status_code == 403, ending
        # As the input of another visitor's event, and by a path through that visitor's own folder.
        answer = other.join("denoise-file", "upload", {"denoise-file": file_data(path)})
        assert answer.status_code == 403
        own = Path(other.send("a.png", png()).json()[0]).parent
        detour = f"{own}/../../../{Path(path).relative_to(own.parent.parent.parent)}"
        assert Path(detour).exists()
        assert other.file(detour).status_code in (403, 404)
        assert other.file(detour.replace("/..", "/%2e%2e")).status_code in (403, 404)
    # Knowing the name of a session gives no access to it.
    other.session = visitor.session
    values = {"denoise-mode": "own"}
    _, text_of_other = other.ask("denoise-start", "click", values)
    assert "You have not uploaded a picture" in text_of_other
    assert "mine.png" not in text_of_other
    assert visitor.file(result_path(text, "zip")).status_code == 200


def test_files_of_the_machine_are_not_served(visitor, listener, folder):
    root = server_root(folder)
    places = (
        *("/etc/passwd", "etc/passwd", str(root / "server.lock"), str(root), listener[0]),
        *(f"/{listener[0]}", "//etc/passwd", "../../etc/passwd", "%00"),
    )
    for place in places:
        for route in (f"file={place}", f"file/{place}", f"proxy={place}", f"stream/{place}"):
            answer = visitor.http.get(f"{API}/{route}", follow_redirects=False)
            assert answer.status_code in (403, 404), (route, answer.status_code)
    assert not listener[1]


def test_only_the_routes_of_the_page_exist(visitor, server):
    for path in (
        *("/openapi.json", "/docs", "/redoc", "/monitoring", "/login", "/deep_link"),
        *(f"{API}/openapi.json", f"{API}/docs", f"{API}/runs", f"{API}/dev/reload"),
        *(f"{API}/run-history/records", f"{API}/vibe-code", f"{API}/deep_link", "//etc/passwd"),
        *(f"{API}/mcp/schema", f"{API}/custom_component/1/client/component/a.js"),
    ):
        assert visitor.http.get(path).status_code == 404, path
    for path in (f"{API}/call/predict", f"{API}/api/predict", f"{API}/process_recording"):
        assert visitor.http.post(path, json={"data": []}).status_code == 404, path
    assert visitor.http.post("/config", json={}).status_code == 405
    assert visitor.http.get(f"{API}/queue/join").status_code == 405
    assert visitor.page.headers["x-frame-options"] == "SAMEORIGIN"
    cookie = visitor.page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "set-cookie" not in visitor.http.get("/").headers
    # Without the cookie, or with an invalid one, there is no visitor.
    assert httpx.post(f"{server}{API}/upload", files={"files": b"x"}).status_code == 403
    for cookie in ("convexlift-visitor=../../etc", "convexlift-visitor=", "a=b"):
        given = {"files": {"files": b"x"}, "headers": {"Cookie": cookie}}
        answer = httpx.post(f"{server}{API}/upload", **given)
        assert answer.status_code == 403


def test_names_of_uploads_do_not_leave_their_folder(visitor, folder):
    root = server_root(folder)
    for name in (
        *("../../../escape.png", "/etc/escape.png", "..\\escape.png", "..", ".", ".hidden", ""),
        *("a" * 300 + ".png", "ü" * 200 + ".png", "a\nb.png", "a" * 20 + "." + "b" * 300),
    ):
        answer = visitor.send(name or " ", png())
        assert answer.status_code == 200, name
        path = Path(answer.json()[0])
        assert path.resolve() == path
        assert path.parent.parent.parent.parent == root
        assert path.parent.parent.name == "uploads"
        assert path.is_file()
    assert len(list(path.parent.parent.iterdir())) == 8  # the oldest are deleted


def test_uploads_that_are_refused_leave_nothing(visitor, folder):
    before = contents(folder)
    assert visitor.send("large.png", bytes((1 << 20) + 1)).status_code == 413
    assert visitor.send("huge.png", bytes(3 << 20)).status_code == 413

    def endless():
        for _ in range(40):
            yield bytes(100_000)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    try:
        answer = visitor.http.post(f"{API}/upload", content=endless(), headers=kind)
        assert answer.status_code in (400, 413)
    except httpx.HTTPError:  # the connection was closed before the end
        pass
    assert visitor.http.post(f"{API}/upload", content=b"--x", headers=kind).status_code == 400
    success, text = visitor.upload("denoise-file", "notes.png", b"no pixels")
    assert success
    assert "notes.png is not a PNG" in text
    assert contents(folder) == before


def test_boxes_name_kinds_for_browsers_and_leave_refusals_to_the_server(visitor):
    """Gradio's own list would refuse other kinds without a hint what to export."""
    boxes = {
        component["props"]["elem_id"]: component["props"]
        for component in visitor.config["components"]
        if component["type"] == "file"
    }
    assert set(boxes) == set(UPLOADS.values())
    for name, props in boxes.items():
        assert props.get("file_types") is None
        kinds = {c.replace("takes-", ".") for c in props["elem_classes"] if c != "drop"}
        assert kinds == set(SCANS if name == "ct-file" else PICTURES)
        assert not kinds & set(EXPORTS)  # telephones would not convert photographs of these kinds
    listed = re.search(r"const refused = new Set\((\[.*?\])\)", visitor.config["head"])
    assert set(json.loads(listed[1])) == set(EXPORTS)


def test_a_raw_file_is_refused_with_a_hint_and_changes_nothing_else(visitor, folder):
    before = contents(folder)
    for box in ("denoise-file", "inpaint-file", "inpaint-mask-file"):
        success, text = visitor.upload(box, "IMG_1.DNG", b"II*\0" + bytes(60))
        assert success
        assert "Export it as 16-bit TIFF" in text
        assert "Press Start" not in text  # as if there were a new picture
    assert contents(folder) == before


def test_a_visitor_has_at_most_two_runs_in_the_queue(visitor, other):
    answers = [visitor.join("denoise-start", "click", SLOW) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert "2 runs in the queue" in answers[2].json()["detail"]
    assert visitor.join("inpaint-start", "click", {}).status_code == 429  # one group for all runs
    # Uploads of the same visitor, and runs of others, are not affected.
    path = visitor.send("mine.png", png()).json()[0]
    answer = visitor.join("denoise-file", "upload", {"denoise-file": file_data(path)})
    assert answer.status_code == 200
    assert wait_until(lambda: not Path(path).exists(), 20)
    assert other.join("denoise-start", "click", SLOW).status_code == 200
    # Closing the page frees the places.
    visitor.leave()
    other.leave()


def test_a_session_whose_run_waits_is_kept_when_many_others_come(visitor, server):
    waiting, slow, crowd = (PageVisitor(server) for _ in range(3))

    def come(numbers):
        for number in numbers:
            crowd.session = f"crowd{number}"
            assert crowd.ask("denoise-stop", "click", {})[0]

    assert waiting.upload("denoise-file", "mine.png", png(32))[0]
    come(range(48))
    assert slow.join("denoise-start", "click", SLOW).status_code == 200
    assert waiting.join("denoise-start", "click", {"denoise-mode": "own"}).status_code == 200
    come(range(48, 52))  # more than are kept, and ``waiting`` is idle for longest
    told = [message for message, _ in waiting.messages()]
    assert [m["success"] for m in told if m["msg"] == "process_completed"] == [True]
    for each in (waiting, slow, crowd):
        each.leave()
    assert visitor.ask("denoise-stop", "click", {})[0]  # the queue goes on


def test_nothing_is_left_of_a_visitor_who_leaves(server, folder):
    visitor = PageVisitor(server)
    visitor.stay()
    finished_run(visitor)
    visitor.send("never-used.png", png(value=33))
    mine = Path(visitor.send("a.png", png()).json()[0]).parent.parent.parent
    assert mine.is_dir()
    visitor.leave()
    assert wait_until(lambda: not mine.exists(), 20)


def test_the_error_about_an_unreadable_file_names_it(visitor, tmp_path):
    path = two_widths(tmp_path / "scan.tif")
    success, text = visitor.upload("denoise-file", path.name, path.read_bytes())
    assert success
    assert "scan.tif cannot be read" in text
    assert "TypeError" not in text


@pytest.mark.slow
def test_drawings_are_kept_for_their_session_and_bounded(visitor, other):
    file = io.BytesIO()
    layer = np.zeros((256, 256, 4), np.uint8)
    layer[100:120, 100:120] = 255
    Image.fromarray(layer).save(file, "PNG")

    def draw(who, name, index="0", content=None, kind="layer", function="accept_blobs"):
        fields = {"id": name, "type": kind, "index": index, "fn_name": function}
        fields |= {"component_id": "1", "session_hash": who.session}
        files = {"file": ("l.png", content or file.getvalue())}
        return who.http.post(f"{API}/component_server/", data=fields, files=files).status_code

    assert draw(visitor, "stroke") == 200
    assert draw(visitor, "stroke", index="1000000000000") == 200  # and is not kept
    assert draw(visitor, "stroke", content=b"GIF89a") == 400
    assert draw(visitor, "stroke", function="postprocess") == 404
    drawn = {"background": None, "layers": [], "composite": None, "id": "stroke"}
    values = {"inpaint-mask": "brush", "inpaint-editor": drawn}
    assert "Nothing is painted" in other.ask("inpaint-start", "click", values)[1]
    success, text = visitor.ask("inpaint-start", "click", values)
    assert success
    record = visitor.file(result_path(text, "json")).json()
    assert record["settings"]["mask"] == "array of shape (256, 256)"
    assert 0.004 < record["missing"] < 0.009


@pytest.mark.slow
def test_few_messages_wait_for_a_browser_that_does_not_read(visitor):
    assert visitor.join("denoise-start", "click", SLOW).status_code == 200
    time.sleep(3.5)  # some 28 pictures, if all of them were kept
    body = visitor.body("denoise-stop", "click", {})
    assert visitor.http.post(f"{API}/run/predict", json=body).status_code == 200
    kept = [message["msg"] for message, _ in visitor.messages()]
    assert kept[-2:] == ["process_completed", "close_stream"]
    assert kept.count("process_generating") < 20


@pytest.mark.slow
def test_a_run_ends_when_its_page_is_closed(server):
    visitor = PageVisitor(server)
    visitor.stay()
    visitor.join("denoise-start", "click", {"denoise-choice": "camera"})
    time.sleep(1.0)
    visitor.leave()
    after = PageVisitor(server)
    after.stay()
    assert result_path(finished_run(after), "zip")
    after.leave()
