"""Seconds from a visitor's request to the first picture of the web page, and to the whole page.

    python benchmarks/first_picture.py [--visits 10] [--new-browsers 4]

Headless Chromium and the server run on this machine; both times are the browser's own, from the
start of the navigation. A browser that has just been started is slow with any page, so the last
rows compare its first visit with static pages: the same picture alone, and a headline alone. It
shows a blank page for half a second before them, or goes to them at once.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import browser, served  # noqa: E402

NOTE = """
new PerformanceObserver(list => window.painted ??= list.getEntries().find(
  entry => entry.element?.tagName === 'IMG' || entry.element?.tagName === 'H1')?.startTime
).observe({type: 'largest-contentful-paint', buffered: true});
(function look() {
  if (document.querySelector('#denoise-picture img')?.getBoundingClientRect().width)
    window.complete = performance.now();
  else setTimeout(look, 10);
})();
"""
HEADLINE = "<!doctype html><h1>convexlift</h1>"


def visit(
    driver: Any, address: str, seconds: float = 30.0, *, blank: bool = True
) -> tuple[float, float | None]:
    """Seconds to the first picture, and to the whole page; None if it has none."""
    if blank:
        driver.get("about:blank")
        time.sleep(0.5)
    driver.get(address)
    end = time.monotonic() + seconds
    painted = complete = None
    while time.monotonic() < end and (painted is None or complete is None):
        time.sleep(0.1)
        painted, complete = driver.execute_script("return [window.painted, window.complete]")
    return painted / 1000, None if complete is None else complete / 1000


def first_visit(folder: Path, address: str, seconds: float, blank: bool) -> float:
    """Seconds to the first picture in a browser that was just started."""
    with browser(folder, 1280, 900) as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NOTE})
        return visit(driver, address, seconds, blank=blank)[0]


@contextmanager
def static(pages: dict[str, str]) -> Iterator[str]:
    """The URL of a server of these pages, by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = pages.get(self.path, "").encode()
            self.send_response(200 if content else 404)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def first_visits(folder: Path, address: str, count: int) -> None:
    """Print the times in new browsers, of the page and of static ones in turn."""
    with urlopen(address) as answer:
        picture = re.search(r"<img[^>]*>", answer.read().decode())
    assert picture is not None
    pages = {"/headline": HEADLINE, "/picture": HEADLINE + picture[0]}
    with static(pages) as other:
        places = {
            "page": (address, 30.0),
            "picture alone": (f"{other}/picture", 3.0),
            "headline alone": (f"{other}/headline", 3.0),
        }
        for blank in (True, False):
            times: dict[str, list[float]] = {what: [] for what in places}
            for _ in range(count):
                for what, (place, wait) in places.items():
                    times[what].append(first_visit(folder, place, wait, blank))
            when = "after a blank page" if blank else "at once"
            for what, found in times.items():
                print(f"new browser, {when}: {what} {spread(found)}", flush=True)


def spread(times: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def main() -> None:
    """Measure, and print a row for each kind of visit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--visits", type=int, default=10)
    parser.add_argument("--new-browsers", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with served(folder / "server") as address:
            time.sleep(10)  # for the run that warms up the server
            with browser(folder, 1280, 900) as driver:
                driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NOTE})
                visit(driver, address)
                for cache in ("empty", "filled"):
                    found = []
                    for _ in range(given.visits):
                        if cache == "empty":
                            driver.execute_cdp_cmd("Network.clearBrowserCache", {})
                        found.append(visit(driver, address))
                    first = spread([painted for painted, _ in found])
                    whole = spread([complete for _, complete in found if complete is not None])
                    print(f"{cache} cache: first picture {first}, whole page {whole}", flush=True)
            first_visits(folder, address, given.new_browsers)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
