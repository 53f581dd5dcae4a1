"""The web page as visitors see it, in headless Chromium: the whole path for each task."""

from __future__ import annotations

import base64
import io
import re
import zipfile

import numpy as np
import pytest
import torch
from browser import SMALL, Visitor, browser, require_browser, served
from PIL import Image
from web_runs import letters

from convexlift.images import load_example, load_image, save_image

require_browser()
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("server"), *SMALL) as address:
        yield address


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def driver(downloads):
    with browser(downloads) as driver:
        yield driver


@pytest.fixture
def visitor(server, driver, downloads):
    for file in downloads.iterdir():
        file.unlink()
    return Visitor(driver, server)


def crop(path, size=96, top=40, left=80, name="camera"):
    save_image(path, load_example(name)[..., top : top + size, left : left + size])
    return path


def noisy_crop(path, sigma=0.1, **place):
    """A photograph with noise, as a visitor has it."""
    image = load_image(crop(path, **place))
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    save_image(path, (image + sigma * noise).clamp(0, 1))
    return path


def test_ones_own_noisy_photograph_is_restored_as_it_is(visitor, downloads, tmp_path):
    path = noisy_crop(tmp_path / "mine.png")
    visitor.give("denoise", path, "mine.png, 96 x 96")
    assert visitor.chosen("#denoise-mode") == "Restore my picture"
    visitor.wait(lambda: visitor.chosen("#denoise-kind") == "Detect", "unknown noise")
    assert not visitor.find("#denoise-choice")
    assert not visitor.find("#denoise-level")
    assert "restored as it is" in visitor.text("#denoise-plan")
    visitor.run("denoise")
    assert not visitor.find("#denoise-quality")
    assert "PSNR" not in visitor.text("body")
    assert " dB" not in visitor.text("body")
    assert len(visitor.driver.find_elements("css selector", "#denoise-maps img")) == 2
    record = visitor.record("denoise", downloads)
    assert "psnr" not in record
    assert record["noise"]["estimated"]
    assert record["noise"]["level"] == pytest.approx(0.1, rel=0.2)
    # What was restored is the photograph itself, not one with more noise.
    before = visitor.find("#denoise-slider img").get_attribute("src")
    shown = visitor.driver.execute_async_script(
        "const done = arguments[1]; fetch(arguments[0]).then(r => r.blob()).then(b => {"
        "const f = new FileReader(); f.onload = () => done(f.result); f.readAsDataURL(b) })",
        before,
    )
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1]))).convert("L"))
    assert (pixels == np.asarray(Image.open(path).convert("L"))).all()


def test_an_upload_is_damaged_only_if_its_owner_says_that_it_is_clean(visitor, downloads, tmp_path):
    visitor.give("denoise", crop(tmp_path / "mine.png"), "mine.png, 96 x 96")
    visitor.choose("#denoise-mode", "Try it on a clean picture")
    visitor.wait(lambda: "camera, 256 x 256" in visitor.text("#denoise-picture"), "an example")
    visitor.pick("#denoise-choice", "My upload, which is clean")
    visitor.wait(lambda: "mine.png" in visitor.text("#denoise-picture"), "the upload again")
    visitor.run("denoise")
    text = visitor.text("#denoise-quality")
    assert "Compared with the clean picture" in text
    assert "PSNR" in text
    assert "SSIM" in text
    assert "PSNR" not in visitor.text("#denoise-numbers")
    assert len(visitor.driver.find_elements("css selector", "#denoise-maps img")) == 3
    record = visitor.record("denoise", downloads)
    assert record["input"] == "mine.png"
    assert record["gap"] <= record["settings"]["tolerance"] == 1e-3
    assert record["psnr"] > record["psnr_before"] + 3
    image = visitor.download("#denoise-image", downloads / "convexlift-denoise.png")
    assert load_image(image).shape == (1, 1, 96, 96)
    archive = visitor.download("#denoise-zip", downloads / "convexlift-denoise.zip")
    names = {"reconstruction.npy", "convexlift-denoise.png", "convexlift-denoise.json"}
    assert set(zipfile.ZipFile(archive).namelist()) == names
    assert visitor.requested() == {visitor.address.split("/")[2]}  # no other server
    assert not visitor.complaints()
    # What was said of this picture does not hold for the next one.
    visitor.give("denoise", noisy_crop(tmp_path / "next.png"), "next.png")
    assert visitor.chosen("#denoise-mode") == "Restore my picture"


def test_a_noisy_photograph_in_colour(visitor, tmp_path):
    generator = np.random.default_rng(0)
    clean = np.asarray(load_example("coffee")[0, 0, 60:124, 60:140])
    colours = np.stack([clean, clean**2, 1 - clean], axis=-1)
    noisy = np.clip(colours + 0.1 * generator.standard_normal(colours.shape), 0, 1)
    Image.fromarray((255 * noisy).astype(np.uint8)).save(tmp_path / "old.png")
    visitor.give("denoise", crop(tmp_path / "first.png"), "first.png")
    visitor.give("denoise", tmp_path / "old.png", "in colour")
    visitor.run("denoise")
    visitor.click("#denoise-numbers summary")
    assert re.search(r"sigma 0\.(08|09|1)", visitor.text("#denoise-numbers"))


def test_inpaint_painted_pixels(visitor, downloads, tmp_path):
    visitor.tab("Inpaint")
    visitor.give("inpaint", crop(tmp_path / "torn.png", 128), "torn.png")
    assert visitor.chosen("#inpaint-mode") == "Restore my picture"
    assert "Mark the missing pixels" in visitor.text("#inpaint-status")
    canvas = visitor.wait(lambda: visitor.find("#inpaint-editor canvas"), "the editor")
    visitor.wait(canvas.is_displayed, "the canvas")
    visitor.click("#inpaint-start")
    assert "Nothing is painted" in visitor.toast()
    visitor.paint()
    visitor.run("inpaint")
    record = visitor.record("inpaint", downloads)
    assert record["settings"]["mask"] == "array of shape (128, 128)"
    assert 0.002 < record["missing"] < 0.5
    assert record["gap"] <= 1e-3
    assert "psnr" not in record


def test_ct_of_the_phantom(visitor):
    visitor.tab("CT")
    visitor.choose("#ct-size", "128 x 128")
    visitor.wait(lambda: "128 x 128" in visitor.text("#ct-picture"), "a smaller phantom")
    visitor.run("ct")
    assert "120 views" in visitor.text("#ct-sinogram")
    assert "Filtered back projection" in visitor.text("#ct-slider")
    assert visitor.find("#ct-sinogram img")
    # The first values are far outside: curves are clipped at the axes, and the legend is above.
    legend, plot, cut = visitor.driver.execute_script(
        "const [legend, plot, inside] = ['.legend', 'svg.plot', 'svg.plot svg'].map("
        "part => document.querySelector('#ct-plot ' + part));"
        "return [legend.getBoundingClientRect().bottom, plot.getBoundingClientRect().top,"
        "[plot, inside].map(part => getComputedStyle(part).overflow)]"
    )
    assert legend <= plot
    assert cut == ["hidden", "hidden"]
    visitor.choose("#ct-size", "256 x 256")  # for another object the result disappears
    visitor.wait(lambda: "Press Start" in visitor.text("#ct-status"), "a new beginning")
    for part in ("numbers", "maps", "sinogram", "slider", "json"):
        visitor.wait(lambda p=part: not visitor.find(f"#ct-{p}"), f"no {part}")
    assert not visitor.find("#ct-plot polyline")


def test_bad_uploads_are_explained(visitor, tmp_path):
    (tmp_path / "notes.png").write_text("these are no pixels")
    visitor.upload("#denoise-file", tmp_path / "notes.png")
    assert "notes.png is not a PNG, JPEG, TIFF or NPY file" in visitor.toast()
    heading = visitor.driver.execute_script(  # in place of Gradio's, which has no size
        "const e = document.querySelector('.toast-title');"
        "return [getComputedStyle(e, '::before').content, getComputedStyle(e).fontSize]"
    )
    assert heading == ['"Please check"', "0px"]
    Image.fromarray(np.zeros((3000, 3000), np.uint8)).save(tmp_path / "large.png")
    visitor.upload("#denoise-file", tmp_path / "large.png")
    visitor.wait(lambda: "3000 x 3000" in visitor.toast(), "another message")
    assert "Traceback" not in visitor.text("body")
    visitor.run("denoise")  # the page still works


def other_kinds(folder):
    """Files that the page does not read, larger than its limit, and what it says of them."""
    raw, heic = folder / "IMG_0001.CR2", folder / "IMG_0002.heic"
    raw.write_bytes(b"II*\0" + bytes(3 << 20))
    heic.write_bytes(b"\0\0\0\x24ftypheic" + bytes(3 << 20))
    return {
        raw: "IMG_0001.CR2 is a camera's raw file, which has no colours yet. "
        "Export it as 16-bit TIFF",
        heic: "IMG_0002.heic is a HEIF picture. Export it as JPEG or PNG.",
    }


def assert_refused(visitor, box, files):
    """Dropped and chosen files are refused with their hints, and the page stays as it was."""
    visitor.wait(lambda: visitor.find(f"{box} input[type=file]"), box)
    before = visitor.text("body")
    for send in (visitor.drop, visitor.upload):
        for path, said in files.items():
            send(box, path)
            assert said in visitor.toast()
            assert visitor.text(".toast-body").count("IMG_") == 1  # no message of Gradio's
            visitor.dismiss()
            visitor.wait(lambda: visitor.text("body") == before, "the page as it was")
    assert not visitor.complaints()


def test_raw_files_and_heic_are_refused_with_a_hint_in_every_box(visitor, tmp_path):
    files = other_kinds(tmp_path)
    assert_refused(visitor, "#denoise-file", files)
    visitor.tab("Inpaint")
    assert_refused(visitor, "#inpaint-file", files)
    visitor.choose("#inpaint-mask", "File")
    visitor.wait(lambda: "No mask yet" in visitor.text("body"), "the box for a mask")
    assert_refused(visitor, "#inpaint-mask-file", files)
    visitor.tab("CT")
    slices = {path: f"{path.name} is not a DICOM file. Upload one CT slice" for path in files}
    assert_refused(visitor, "#ct-file", slices)


def test_a_refused_file_leaves_the_upload_and_its_result(visitor, downloads, tmp_path):
    visitor.give("denoise", noisy_crop(tmp_path / "mine.png"), "mine.png, 96 x 96")
    visitor.run("denoise")
    assert_refused(visitor, "#denoise-file", other_kinds(tmp_path))
    assert visitor.find("#denoise-slider img")
    assert visitor.record("denoise", downloads)["input"] == "mine.png"
    dropped = noisy_crop(tmp_path / "next.png", size=64)
    visitor.drop("#denoise-file", dropped)
    visitor.wait(lambda: "next.png, 64 x 64" in visitor.text("#denoise-picture"), "the next one")


def test_telephones_are_offered_only_what_they_need_not_convert(visitor, tmp_path):
    """An iPhone sends a JPEG of a HEIC photograph if the list has images, but not HEIC."""
    agent = visitor.driver.execute_script("return navigator.userAgent")
    phone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15"
    pictures = ".png, .jpg, .jpeg, .tif, .tiff, .npy"
    try:
        for name in (agent, phone):
            visitor.driver.execute_cdp_cmd("Network.setUserAgentOverride", {"userAgent": name})
            visitor.open()
            assert visitor.offered("#denoise-file") == pictures
            assert_refused(visitor, "#denoise-file", other_kinds(tmp_path))
            assert visitor.offered("#denoise-file") == pictures  # in a box that was used
            visitor.give("denoise", crop(tmp_path / "IMG_0002.png"), "IMG_0002.png, 96 x 96")
    finally:
        visitor.driver.execute_cdp_cmd("Network.setUserAgentOverride", {"userAgent": agent})
    visitor.tab("CT")
    assert visitor.offered("#ct-file") == ".dcm, .dicom, .ima"


def test_a_picture_that_is_large_is_scaled_or_cut_or_taken_whole(visitor, tmp_path):
    pixels = np.tile(np.linspace(0, 255, 900).astype(np.uint8), (600, 1))
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    visitor.upload("#denoise-file", tmp_path / "wide.png")
    said = "wide.png, 450 x 300, scaled down from 900 x 600"
    visitor.wait(lambda: said in visitor.text("#denoise-picture"), "a smaller picture")
    assert "It is large" in visitor.text("#denoise-part")
    visitor.choose("#denoise-part", "Middle, full size")
    visitor.wait(lambda: "wide.png, 627 x 418" in visitor.text("#denoise-picture"), "the middle")
    visitor.choose("#denoise-part", "Whole, full size, in tiles")
    visitor.wait(lambda: "wide.png, 900 x 600" in visitor.text("#denoise-picture"), "all of it")
    visitor.choose("#denoise-mode", "Try it on a clean picture")
    visitor.wait(lambda: "camera" in visitor.text("#denoise-picture"), "an example")
    assert not visitor.find("#denoise-part")


def test_stop_keeps_the_result_so_far(visitor, downloads):
    visitor.choose("#denoise-kind", "Salt & pepper")
    visitor.wait(lambda: "fraction of the pixels" in visitor.text("#denoise-level"), "its level")
    visitor.click("#denoise-start")
    visitor.wait(lambda: "Iteration" in visitor.text("#denoise-picture"), "iterations")
    visitor.driver.execute_script(
        # What the page says right after the click, before any answer of the server.
        "window.said = []; const e = document.querySelector('#denoise-status');"
        "new MutationObserver(() => said.push([performance.now(), e.innerText]))"
        ".observe(e, {childList: true, subtree: true, characterData: true});"
        "window.pressed = performance.now(); document.querySelector('#denoise-stop').click()"
    )
    visitor.wait(lambda: "Stopped by you" in visitor.text("#denoise-status"), "the end")
    pressed, said = visitor.driver.execute_script("return [pressed, said]")
    first = next(i for i, (_, text) in enumerate(said) if "Stopping..." in text)
    assert "Running" not in "".join(text for _, text in said[first:])
    assert said[first][0] - pressed < 1000
    assert re.search(
        r"Stopped by you\.\s*(Solved to within|Not solved yet)", visitor.text("#denoise-status")
    )
    assert visitor.find("#denoise-slider img")
    record = visitor.record("denoise", downloads)
    assert record["status"] == "STOPPED"
    assert record["gap"] > 1e-3


def test_two_visitors_at_once(visitor, server, tmp_path):
    crop(tmp_path / "hers.png", 128)
    crop(tmp_path / "his.png", 112, name="rocket")
    (tmp_path / "his").mkdir()
    with browser(tmp_path / "his") as second:
        other = Visitor(second, server)
        visitor.upload("#denoise-file", tmp_path / "hers.png")
        other.upload("#denoise-file", tmp_path / "his.png")
        visitor.wait(lambda: "hers.png, 128 x 128" in visitor.text("#denoise-picture"), "hers")
        other.wait(lambda: "his.png, 112 x 112" in other.text("#denoise-picture"), "his")
        for each in (visitor, other):
            each.click("#denoise-start")
        sizes = []
        for each in (visitor, other):
            each.wait(lambda e=each: "Solved to" in e.text("#denoise-status"), "the end")
            image = each.wait(lambda e=each: e.find("#denoise-slider img"), "the slider")
            each.wait(lambda i=image: int(i.get_attribute("naturalWidth")), "its size")
            sizes.append(int(image.get_attribute("naturalWidth")))
        assert sizes == [128, 112]
        mine = {i.get_attribute("src") for i in visitor.driver.find_elements("css selector", "img")}
        his = {i.get_attribute("src") for i in second.find_elements("css selector", "img")}
        files = {url for url in mine | his if "/file=" in url}
        assert files
        assert not files & mine & his


def test_the_noise_of_a_page_of_text_must_be_chosen(visitor, tmp_path):
    save_image(tmp_path / "page.png", letters())
    visitor.give("denoise", tmp_path / "page.png", "page.png")
    visitor.wait(lambda: visitor.chosen("#denoise-kind") == "Detect", "unknown noise")
    visitor.click("#denoise-start")
    assert "as in text" in visitor.toast()
    visitor.wait(lambda: "as in text" in visitor.text("#denoise-status"), "the reason")
    visitor.choose("#denoise-kind", "Gaussian")  # as the message says
    visitor.wait(lambda: visitor.find("#denoise-level"), "a level")
    visitor.run("denoise")
    visitor.click("#denoise-numbers summary")
    assert "sigma 0.1" in visitor.text("#denoise-numbers")


def test_ct_of_a_slice(visitor, tmp_path):
    from convexlift.scans.files import write_volume
    from convexlift.scans.volumes import Volume

    values = 2000 * load_example("brick")[0, :, :96, :96].float() - 1000
    write_volume(Volume.stacked(values, (1.0, 1.0)), tmp_path / "slice.dcm")
    visitor.tab("CT")
    visitor.give("ct", tmp_path / "slice.dcm", "slice.dcm, 96 x 96")
    assert visitor.chosen("#ct-mode") == "Scan my slice"
    visitor.run("ct")
    assert not visitor.find("#ct-quality")
    assert "Error" not in visitor.text("#ct-maps")


def test_inpaint_with_a_mask_file(visitor, downloads, tmp_path):
    visitor.tab("Inpaint")
    visitor.choose("#inpaint-mask", "File")
    mask = torch.ones(1, 1, 256, 256)
    mask[..., 100:140, 100:180:2] = 0  # lines: holes take hundreds of iterations
    save_image(tmp_path / "mask.png", mask)
    visitor.upload("#inpaint-mask-file", tmp_path / "mask.png")
    visitor.wait(lambda: "2 % missing" in visitor.text("body"), "the mask")
    visitor.run("inpaint")
