"""Headless Chromium on the web page, as a visitor uses it."""

from __future__ import annotations

import json
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from marks import require_gradio

from soak.page_visitor import serving

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SMALL = ("--max-upload", "1", "--max-pixels", "270000", "--max-seconds", "300", "--runs", "2")
"""Options of a server with small limits."""
SOLVED = re.compile(
    r"^Solved to within 0\.\d+ %:.*It does not say that the picture is true\.$", re.S
)


def require_browser() -> None:
    """Skip a module without Gradio, Selenium or Chromium."""
    require_gradio()
    pytest.importorskip("selenium", reason="the browser is driven by selenium")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)


@contextmanager
def browser(downloads: Path, width: int = 1400, height: int = 1000):
    """A driver that notes every request, and saves downloads to a folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--use-gl=angle"),
        *("--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
        *("--disable-background-networking", f"--window-size={width},{height}"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def served(folder: Path, *options: str):
    """The URL of a server; it must end without messages, and leave no file in the folder."""
    with serving(folder, *options) as (address, _):
        yield f"{address}/"
    assert not (folder / "errors.txt").read_text()
    assert not list(folder.glob("convexlift-web-*"))


class Visitor:
    """A person who uses the page."""

    def __init__(self, driver, address: str) -> None:
        self.driver, self.address = driver, address
        self.open()

    def open(self, query: str = "") -> None:
        self.driver.get(self.address + query)
        self.wait(lambda: self.find("#denoise-start"), "the page")

    def find(self, selector: str):
        found = self.driver.find_elements("css selector", selector)
        return found[0] if found else None

    def wait(self, condition, what: str, seconds: float = 120.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if result := self._tried(condition):
                return result
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come; the page says: {self.text('body')[:600]}")

    def text(self, selector: str) -> str:
        return self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : '';", selector
        )

    def tab(self, name: str) -> None:
        self.wait(
            lambda: self.driver.execute_script(
                "const b = [...document.querySelectorAll('button[role=tab]')]"
                ".filter(e => e.innerText.trim() === arguments[0] && e.offsetParent);"
                "if (b.length) { b[0].click(); return true } return false",
                name,
            ),
            f"the tab {name}",
        )
        time.sleep(0.3)  # Gradio builds a tab when it is first opened, and loses clicks meanwhile

    def click(self, selector: str) -> None:
        element = self.wait(lambda: self.find(selector), selector)
        self.wait(lambda: element.is_enabled() and element.is_displayed(), f"{selector} enabled")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        self.driver.execute_script("arguments[0].click()", element)

    def choose(self, selector: str, label: str) -> None:
        """A radio button or a checkbox by its text."""
        self.wait(
            lambda: self.driver.execute_script(
                "const l = [...document.querySelectorAll(arguments[0] + ' label')]"
                ".filter(e => e.innerText.trim() === arguments[1]);"
                "if (l.length) { l[0].querySelector('input').click(); return true } return false",
                selector,
                label,
            ),
            f"{label} in {selector}",
        )

    def chosen(self, selector: str) -> str:
        """The text of the radio button that is on."""
        return self.driver.execute_script(
            "const e = document.querySelector(arguments[0] + ' input:checked');"
            "return e ? e.closest('label').innerText.trim() : ''",
            selector,
        )

    def pick(self, selector: str, label: str) -> None:
        """An entry of a list, with the keyboard."""
        from selenium.webdriver.common.keys import Keys

        field = self.wait(lambda: self.find(f"{selector} input"), selector)
        field.click()

        def active() -> str | None:
            return self.find(f"{selector} li.active").get_attribute("aria-label")

        while (now := self.wait(active, "an entry")) != label:
            field.send_keys(Keys.ARROW_DOWN)
            self.wait(lambda now=now: active() != now, f"an entry after {now}")
        field.send_keys(Keys.ENTER)

    def upload(self, selector: str, path: Path) -> None:
        field = self.wait(
            lambda: self.find(f"{selector} input[type=file]"), f"{selector} for files"
        )
        field.send_keys(str(path))

    def drop(self, selector: str, path: Path) -> None:
        """Drag a file from the desktop onto a box."""
        box = self.wait(lambda: self.find(f"{selector} button"), f"{selector} for files")
        x, y = self.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center'});"
            "const r = arguments[0].getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]",
            box,
        )
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "x": x, "y": y, "data": data}
            self.driver.execute_cdp_cmd("Input.dispatchDragEvent", event)

    def offered(self, selector: str) -> str:
        """The kinds of files that the browser is told to offer when a box is clicked."""
        return self.driver.execute_script(
            "const box = document.querySelector(arguments[0]); let kinds;"
            "const note = e => {"
            "  if (e.target.type === 'file') { kinds = e.target.accept; e.preventDefault() } };"
            "document.addEventListener('click', note);"
            "box.querySelector('button').click();"
            "document.removeEventListener('click', note); return kinds",
            selector,
        )

    def give(self, tab: str, path: Path, said: str) -> None:
        """Upload a picture, and wait until the page describes it so."""
        self.upload(f"#{tab}-file", path)
        self.wait(lambda: said in self.text(f"#{tab}-picture"), f"the upload {said}")

    def paint(self) -> None:
        """A stroke of the brush. The editor loses strokes while it sends its picture."""
        from selenium.webdriver import ActionChains

        def sent() -> int:
            return self.driver.execute_script(
                "return performance.getEntriesByType('resource')"
                ".filter(e => e.name.endsWith('/upload')).length"
            )

        def quiet() -> bool:
            before = sent()
            time.sleep(1.0)
            return sent() == before

        def painted() -> bool:
            canvas = self.find("#inpaint-editor canvas")
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
            ActionChains(self.driver).move_to_element_with_offset(canvas, -20, 0).click_and_hold(
            ).move_by_offset(20, 5).move_by_offset(20, 5).release().perform()  # fmt: skip
            time.sleep(0.5)
            undo = self.find("#inpaint-editor button[aria-label=Undo]")
            return undo is not None and undo.is_enabled()

        self.wait(quiet, "the editor")
        self.wait(painted, "a stroke")
        self.wait(quiet, "the editor with the stroke")

    def run(self, tab: str) -> None:
        """Press start, see a picture, and wait for the verdict."""
        self.click(f"#{tab}-start")
        shown = re.compile("Given|Start|Iteration")

        def verdict():
            return SOLVED.search(self.text(f"#{tab}-status").strip())

        # A short run ends between two looks.
        self.wait(lambda: shown.search(self.text(f"#{tab}-picture")) or verdict(), "a picture")
        self.wait(verdict, "a verdict", 300)
        self.wait(lambda: self.find(f"#{tab}-slider img"), "the slider")
        assert self.find(f"#{tab}-plot polyline")

    def toast(self) -> str:
        return self.wait(lambda: self.text(".toast-body"), "a message")

    def dismiss(self) -> None:
        """Close the message."""
        self.click(".toast-close")
        self.wait(lambda: not self.find(".toast-body"), "the end of the message")

    def download(self, selector: str, path: Path) -> Path:
        element = self.wait(lambda: self.find(selector), selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        time.sleep(0.2)
        element.click()  # by the mouse: Chromium saves scripts only after a click
        return self.wait(lambda: path.exists() and path.stat().st_size and path, str(path))

    def record(self, tab: str, folder: Path) -> dict[str, object]:
        """The downloaded record of a run."""
        return json.loads(
            self.download(f"#{tab}-json", folder / f"convexlift-{tab}.json").read_text()
        )

    def requested(self) -> set[str]:
        """Hosts to which the page sent requests."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if url.startswith(("http", "ws")):
                    hosts.add(url.split("/")[2])
        return hosts

    def complaints(self) -> list[str]:
        """Errors in the console."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]

    def _tried(self, condition):
        from selenium.common.exceptions import WebDriverException

        try:
            return condition()
        except WebDriverException:
            return None
