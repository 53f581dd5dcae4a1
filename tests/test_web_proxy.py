"""The web page behind a reverse proxy, under another name and a path, as the documentation says."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from urllib.parse import urlsplit

import pytest
from browser import Visitor, browser, require_browser, served

require_browser()
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

NAME, PATH = "images.localhost", "/convexlift"  # browsers resolve such names to this machine
NOTHING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def proxy(port: int):
    """The port of a proxy that removes PATH, keeps Host, and does not buffer."""

    async def passed(source, target):
        with contextlib.suppress(ConnectionError):
            while part := await source.read(65536):
                target.write(part)
                await target.drain()
        target.close()

    async def connected(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, version = head[0].split(" ")
            if not path.startswith(f"{PATH}/"):
                writer.write(NOTHING)
                await writer.drain()
                writer.close()
                return
            # One request per connection, so that there is only one head to change.
            lines = [f"{method} {path.removeprefix(PATH)} {version}", "Connection: close"]
            lines += [line for line in head[1:] if not line.lower().startswith("connection:")]
            behind, ahead = await asyncio.open_connection("127.0.0.1", port)
            ahead.write("\r\n".join(lines).encode("latin-1"))
            await asyncio.gather(passed(reader, ahead), passed(behind, writer))

    async def work():
        nonlocal found
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        found = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            while not ended.is_set():
                await asyncio.sleep(0.1)

    found, ready, ended = 0, threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=[work()], daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield found
    finally:
        ended.set()
        thread.join(10)


def test_a_visit_through_a_proxy(tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    with (
        served(tmp_path, "--name", NAME, "--root-path", PATH) as address,
        proxy(urlsplit(address).port) as port,
        browser(downloads) as driver,
    ):
        visitor = Visitor(driver, f"http://{NAME}:{port}{PATH}/")
        visitor.click("#denoise-start")
        visitor.wait(lambda: "iteration" in visitor.text("#denoise-status"), "progress")
        visitor.wait(lambda: "Solved to within" in visitor.text("#denoise-status"), "the end")
        image = visitor.wait(lambda: visitor.find("#denoise-slider img"), "the slider")
        visitor.wait(lambda: image.get_attribute("naturalWidth") == "256", "its picture")
        assert visitor.record("denoise", downloads)["gap"] <= 1e-3
        picture = visitor.download("#denoise-image", downloads / "convexlift-denoise.png")
        visitor.give("denoise", picture, picture.name)
        visitor.choose("#denoise-kind", "Salt & pepper")
        visitor.wait(
            lambda: "fraction of the pixels" in visitor.text("#denoise-level"), "its level"
        )
        visitor.click("#denoise-start")
        visitor.wait(lambda: "Iteration" in visitor.text("#denoise-picture"), "iterations")
        visitor.click("#denoise-stop")
        visitor.wait(lambda: "Stopped by you" in visitor.text("#denoise-status"), "the end")
        assert visitor.requested() == {f"{NAME}:{port}"}
        # Requested at the root whatever the path is; nothing depends on them.
        aside = re.compile(r"/(manifest\.json|favicon\.ico)\b")
        assert not [text for text in visitor.complaints() if not aside.search(text)]
        driver.get(address)  # the owner can still reach it directly
        visitor.wait(lambda: visitor.find("#denoise-start"), "the page without the proxy")
        driver.get(f"http://other.localhost:{port}{PATH}/")
        assert "does not answer to that name" in visitor.text("body")
