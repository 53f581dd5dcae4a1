"""The web page without a browser: limits, uploads, runs, scripts, sessions, the guard."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from convexlift.cli import app
from convexlift.images import load_example
from convexlift.phantoms import shepp_logan
from convexlift.web.guard import HEADERS, LOOPBACK, Guard, names_other_server
from convexlift.web.jobs import TV, CTJob, DenoisingJob, InpaintingJob, fitting
from convexlift.web.limits import Limits, PageError
from convexlift.web.pictures import NotShown, deep_png, false_colours, grey_or_colour, preview
from convexlift.web.plots import Line, closing_plot, nice_steps, race_plot
from convexlift.web.race import Race
from convexlift.web.results import error_map, record, write_files
from convexlift.web.running import Ending, Run
from convexlift.web.scripts import script
from convexlift.web.server import NEEDED, ServerOptions
from convexlift.web.sessions import Sessions
from convexlift.web.uploads import Picture, read_layer, read_slice, read_upload, shown_name
from convexlift.web.views import live_picture, maps, numbers, standings, verdict

pydicom = pytest.importorskip("pydicom")
LIMITS = Limits(pixels=100 * 100, upload_bytes=50_000)


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


def crop(size=48, planes=1):
    values = load_example("camera")[..., 60 : 60 + size, 90 : 90 + size]
    return Picture(values.repeat(planes, 1, 1, 1).contiguous(), "crop.png")


def finished(job, seconds=60.0):
    run = Run(job, seconds).start()
    list(run.snapshots(pause=0.0))
    return run.outcome


# Limits and uploads


def test_limits_are_checked_when_they_are_made():
    for wrong in ({"pixels": 3}, {"runs": 0}, {"seconds": math.inf}, {"upload_bytes": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


def saved(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def grey(height=20, width=30, dtype=np.uint8):
    top = np.iinfo(dtype).max
    return (np.linspace(0, 1, height * width).reshape(height, width) * top).astype(dtype)


def test_pictures_of_all_kinds(tmp_path):
    eight, sixteen = grey(), grey(dtype=np.uint16)
    colours = np.stack([eight, eight[::-1], eight.T.reshape(20, 30)], axis=-1)
    np.save(tmp_path / "a.npy", eight.astype(np.float32) / 255)
    files = [
        saved(tmp_path / "a.png", eight),
        saved(tmp_path / "b.png", sixteen),
        saved(tmp_path / "a.tif", eight),
        saved(tmp_path / "b.tiff", sixteen),
        tmp_path / "a.npy",
    ]
    for path in files:
        picture = read_upload(path, LIMITS)
        assert picture.size == (20, 30)
        assert torch.allclose(
            picture.values[0, 0], torch.from_numpy(eight / 255).float(), atol=5e-3
        )
    rgb = saved(tmp_path / "c.png", colours)
    assert read_upload(rgb, LIMITS).values.shape == (3, 1, 20, 30)
    assert read_upload(rgb, LIMITS, colours=False).values.shape == (1, 1, 20, 30)
    jpeg = saved(tmp_path / "c.jpg", colours)
    assert read_upload(jpeg, LIMITS).values.shape == (3, 1, 20, 30)
    same = saved(tmp_path / "d.png", np.stack([eight] * 3, axis=-1))
    assert read_upload(same, LIMITS).values.shape == (1, 1, 20, 30)  # colours that are none


def bomb(path, width=60_000, height=60_000):
    """A PNG file of a few bytes that says it has billions of pixels."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    return path


def huge_npy(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (100_000, 100_000)}
        )
    return path


def pickled_npy(path):
    np.save(path, np.array([[print, 1], [2, 3]], dtype=object), allow_pickle=True)
    return path


def written(path, content):
    path.write_bytes(content)
    return path


BAD = {
    "a bomb": (lambda p: bomb(p / "x.png"), "far too many pixels"),
    "a smaller bomb": (lambda p: bomb(p / "x.png", 9000, 9000), "9000 x 9000"),
    "a huge array": (lambda p: huge_npy(p / "x.npy"), "100000 x 100000"),
    "a pickle": (lambda p: pickled_npy(p / "x.npy"), "Python objects"),
    "text": (lambda p: written(p / "x.png", b"hello"), "no PNG, JPEG, TIFF or NPY"),
    "nothing": (lambda p: written(p / "x.png", b""), "no PNG, JPEG, TIFF or NPY"),
    "a GIF": (lambda p: saved(p / "x.gif", grey()), "no PNG, JPEG, TIFF or NPY"),
    "SVG": (lambda p: written(p / "x.svg", b"<svg/>"), "no PNG, JPEG, TIFF or NPY"),
    "half a file": (
        lambda p: written(p / "x.png", saved(p / "y.png", grey(90, 90)).read_bytes()[:200]),
        "x.png",
    ),
    "a wrong ending": (
        lambda p: written(p / "x.png", saved(p / "y.tif", grey()).read_bytes()),
        "TIFF file with another ending",
    ),
    "too many bytes": (lambda p: written(p / "x.png", bytes(60_000)), "0.1 MB"),
    "too many pixels": (lambda p: saved(p / "x.png", grey(200, 200)), "200 x 200"),
    "too few pixels": (lambda p: saved(p / "x.png", grey(8, 40)), "40 x 8"),
    "two pages": (
        lambda p: saved(
            p / "x.tif", grey(), save_all=True, append_images=[Image.fromarray(grey())]
        ),
        "2 pages",
    ),
    "NaN": (lambda p: np.save(p / "x.npy", np.full((20, 20), np.nan)) or p / "x.npy", "NaN"),
    "another scale": (
        lambda p: np.save(p / "x.npy", np.full((20, 20), 255.0)) or p / "x.npy",
        "from 255",
    ),
    "a cube": (
        lambda p: np.save(p / "x.npy", np.zeros((20, 20, 20), np.uint8)) or p / "x.npy",
        "shape",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_uploads_by_name(name, tmp_path):
    make, said = BAD[name]
    path = make(tmp_path)
    with pytest.raises(PageError, match=said) as caught:
        read_upload(path, LIMITS)
    assert caught.value.hint.endswith(".")
    assert str(tmp_path) not in str(caught.value)  # folders of the server are nobody's business


def test_a_bomb_takes_no_time(tmp_path):
    start = time.perf_counter()
    with pytest.raises(PageError):
        read_upload(bomb(tmp_path / "x.png"), Limits())
    assert time.perf_counter() - start < 0.5


def dicom(path, rows=32, columns=32, deflated=False, **changes):
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

    from convexlift.scans.files import write_volume
    from convexlift.scans.volumes import Volume

    values = torch.linspace(-1000, 1000, rows * columns).reshape(1, rows, columns)
    write_volume(Volume.stacked(values, (1.0, 1.0)), path)
    dataset = pydicom.dcmread(path)
    for key, value in changes.items():
        setattr(dataset, key, value)
    syntax = DeflatedExplicitVRLittleEndian if deflated else ExplicitVRLittleEndian
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path, enforce_file_format=True)
    return path


def test_slices(tmp_path):
    picture = read_slice(dicom(tmp_path / "a.dcm", 40, 32), LIMITS)
    assert picture.values.shape == (1, 1, 32, 32)
    assert 0 <= float(picture.values.min()) < 0.2
    for name, changes, said in (
        ("large", {"Rows": 5000, "Columns": 5000}, "5000 x 5000"),
        ("deflated", {"deflated": True}, "deflated"),
        ("frames", {"NumberOfFrames": 7}, "7 frames"),
    ):
        with pytest.raises(PageError, match=said):
            read_slice(dicom(tmp_path / f"{name}.dcm", **changes), LIMITS)
    with pytest.raises(PageError, match="no DICOM file"):
        read_slice(saved(tmp_path / "x.dcm", grey(), format="PNG"), LIMITS)


def test_drawings(tmp_path):
    drawing = np.zeros((20, 30, 4), np.uint8)
    drawing[3:5, 6:9] = 255
    file = io.BytesIO()
    Image.fromarray(drawing).save(file, format="PNG")
    assert (read_layer(file.getvalue(), LIMITS) == drawing[..., 3]).all()
    with pytest.raises(PageError, match="far too many pixels"):
        read_layer(bomb(tmp_path / "x.png").read_bytes(), LIMITS)
    with pytest.raises(PageError, match="cannot be read"):
        read_layer(b"GIF89a", LIMITS)


def test_names_are_shown_without_anything_odd(tmp_path):
    assert shown_name(tmp_path / "<img src=x>.png") == "_img src_x_.png"
    assert len(shown_name(tmp_path / ("a" * 300 + ".png"))) <= 40


# Pictures and plots


def test_what_is_not_finite_is_no_picture():
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = math.nan
    for show in (grey_or_colour, deep_png, lambda v: false_colours(v[0, 0], 1.0)):
        with pytest.raises(NotShown):
            show(x)
    assert preview(torch.zeros(1, 1, 1500, 700)).shape[-2:] == (500, 233)


def test_plots():
    assert nice_steps(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    drawn = closing_plot([0, 5, 10], [math.inf, 3.0, 2.0], [-math.inf, 1.0, 1.9])
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert drawn.count("<polyline") == 2
    assert "<svg" in closing_plot([], [], [])
    lines = [Line("a", [0.0, 1.0], [1.0, 0.1]), Line("b<", [0.0], [math.nan])]
    assert "b&lt;" in race_plot(lines, "seconds")


# Jobs


def test_regularizers_that_fit():
    assert fitting("inpainting", (256, 256))[0] == "photo-any-size"
    assert "faces-inpainting-bilevel" in fitting("inpainting", (256, 256))
    assert "faces-inpainting-bilevel" not in fitting("inpainting", (256, 255))
    assert fitting("ct", (64, 64))[-1] == TV


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"regularizer": "ct-abdomen-chest"}, "does not fit"),
        ({"regularizer": "../../etc/passwd"}, "does not fit"),
        ({"tolerance": math.nan}, "not a number"),
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"strength": 1e9}, "strength"),
        ({"seed": -1}, "seed"),
        ({"level": 7.0}, "noise level is 7"),
        ({"kind": None}, "no noise to simulate"),
    ],
)
def test_bad_requests_by_name(change, said):
    with pytest.raises(PageError, match=said):
        DenoisingJob(**{"picture": crop(), "regularizer": "photo-any-size", **change})


def test_bad_masks_by_name():
    job = {"picture": crop(), "regularizer": TV}
    for mask, said in (
        (torch.ones(48, 48), "No pixel is missing"),
        (torch.zeros(48, 48), "100%"),
        (torch.ones(10, 48), "10"),
    ):
        with pytest.raises(PageError, match=said):
            InpaintingJob(**job, mask=mask)
    with pytest.raises(PageError, match="which pixels"):
        InpaintingJob(**job, simulated=False)


def jobs():
    mask = torch.ones(48, 48)
    mask[10:20, 15:30] = 0
    loose = {"tolerance": 1e-2}
    return {
        "gaussian": DenoisingJob(
            picture=Picture(load_example("camera"), "camera", example=True),
            regularizer=TV,
            **loose,
        ),
        "impulses": DenoisingJob(
            picture=crop(), regularizer="photo-any-size", kind="salt-and-pepper", level=0.2, **loose
        ),
        "noisy": DenoisingJob(
            picture=crop(), regularizer=TV, simulated=False, kind=None, level=None, **loose
        ),
        "random": InpaintingJob(
            picture=crop(planes=3), regularizer="photo-any-size", seed=3, **loose
        ),
        "drawn": InpaintingJob(
            picture=crop(), regularizer=TV, mask=mask, simulated=False, level=None, **loose
        ),
        "phantom": CTJob(
            picture=Picture(shepp_logan(48), "Shepp-Logan phantom", example=True),
            regularizer="ct-abdomen-chest",
            views=30,
            tolerance=5e-2,
        ),
        "slice": CTJob(picture=crop(), regularizer=TV, views=20, tolerance=0.3),
    }


@pytest.mark.parametrize("name", ["gaussian", "random", "drawn", "phantom"])
def test_the_script_repeats_the_run(name, tmp_path):
    repeat(jobs()[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impulses", "noisy", "slice"])
def test_more_scripts_repeat_their_runs(name, tmp_path):
    repeat(jobs()[name], tmp_path)


def repeat(job, folder):
    outcome = finished(job)
    assert outcome.ending is Ending.CERTIFIED
    facts = record(outcome)
    files = write_files(outcome, facts, folder)
    elsewhere = folder / "elsewhere"
    with zipfile.ZipFile(files.everything) as archive:
        archive.extractall(elsewhere)
    done = subprocess.run(
        [sys.executable, elsewhere / files.script.name],
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    repeated = torch.from_numpy(np.load(elsewhere / "repeated.npy"))
    kept = torch.from_numpy(np.load(elsewhere / "reconstruction.npy"))
    assert torch.allclose(repeated, kept, atol=1e-5)
    assert f"converged after {int(outcome.solution.iterations[0])} iterations" in done.stdout
    assert f"objective {float(outcome.solution.objective[0]):.5g}"[:-1] in done.stdout
    if job.simulated:
        assert f"PSNR {facts['psnr_after']:.2f} dB" in done.stdout
        assert facts["psnr_after"] > facts["psnr_before"] or name_of(job) == "ct"
    assert json.loads(files.numbers.read_text())["gap"] == outcome.gap <= job.tolerance


def name_of(job):
    return job.name


def test_a_result_is_shown_whole(tmp_path):
    outcome = finished(jobs()["impulses"])
    assert "Certified gap" in verdict(outcome)
    assert error_map(outcome).shape == (48, 48)
    assert maps(outcome).count("<img") == 2
    assert "PSNR" in numbers(record(outcome))
    unknown = finished(jobs()["noisy"])
    assert maps(unknown).count("<img") == 1
    assert "PSNR" not in numbers(record(unknown))


# Runs


def long_job():
    return DenoisingJob(
        picture=Picture(load_example("camera"), "camera", example=True),
        regularizer="photo-any-size",
        tolerance=1e-6,
    )


def test_stop_stops_the_solver():
    run = Run(long_job(), 60.0).start()
    for snapshot in run.snapshots(pause=0.0):
        if snapshot.points:
            break
    else:
        pytest.fail("the run ended by itself")
    assert run.join(10.0)  # leaving the loop was enough: nobody looks any more
    assert run.outcome.ending is Ending.STOPPED
    iterations = run.outcome.iterations
    time.sleep(0.2)
    assert run.outcome.iterations == iterations
    assert f"max_iterations={iterations}" in script(run.outcome, "0")


def test_the_time_limit_ends_a_run_with_its_proof():
    outcome = finished(long_job(), seconds=0.3)
    assert outcome.ending is Ending.TIME
    assert "Stopped at the time limit" in verdict(outcome)


def test_the_first_picture_comes_at_once():
    run = Run(long_job(), 60.0)
    start = time.perf_counter()
    run.start()
    snapshots = run.snapshots(pause=0.0)
    first = next(s for s in snapshots if s.stated is not None)
    assert "<img" in live_picture(first, run.job)
    assert time.perf_counter() - start < 2.0
    snapshots.close()
    assert run.join(10.0)


def test_errors_in_a_run_are_sentences(monkeypatch, caplog):
    job = jobs()["impulses"]
    monkeypatch.setattr(DenoisingJob, "damaged", lambda self: 1 / 0)
    with pytest.raises(PageError, match="ZeroDivisionError"):
        list(Run(job, 5.0).start().snapshots())
    assert "a run failed" in caplog.text  # the traceback is for the log


def test_a_race():
    job = replace(jobs()["impulses"], kind="gaussian", level=0.1)
    race = Race(job, ("default", "paper", "nmapg", "lbfgs", "sm-c", "sm-d"), seconds=1.0).start()
    assert list(race.news(pause=0.0))
    table = standings(race)
    for lap in race.laps:
        assert lap.name in table
        assert lap.objective[-1] >= race.bound - 1e-6 * abs(race.bound), lap.name
    reached = {line.name: line.y[-1] for line in race.lines()}
    assert reached["default"] < 1e-2
    with pytest.raises(PageError, match="No method"):
        Race(job, (), 1.0)


def test_a_race_in_a_scanner_and_its_stop():
    race = Race(jobs()["slice"], ("default", "paper", "sm-c"), seconds=0.5).start()
    for _ in race.news(pause=0.0):
        pass
    assert all(lap.objective and not lap.note for lap in race.laps)
    race = Race(jobs()["slice"], ("default", "paper", "sm-c"), seconds=30.0).start()
    threading.Timer(0.3, race.stop).start()
    start = time.perf_counter()
    list(race.news())
    assert time.perf_counter() - start < 10


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


def test_the_server_is_for_this_machine_unless_told_otherwise():
    assert ServerOptions().local
    assert not ServerOptions(host="0.0.0.0").local


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
