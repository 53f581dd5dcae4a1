"""A visitor of the web page without a browser: it sends the requests of Gradio's own client."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

API = "/gradio_api"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL, without the last slash, and the process of a server with ``folder`` as TMPDIR."""
    command = [sys.executable, "-m", "convexlift", "serve", "--port", "0", "--no-open"]
    with (
        (folder / "errors.txt").open("a") as errors,
        subprocess.Popen(
            [*command, "--device", "cpu", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", line)
            if address is None:
                raise RuntimeError(f"no server: {line}{(folder / 'errors.txt').read_text()}")
            yield address.group().rstrip("/"), process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


class PageVisitor:
    """One browser tab: its cookies, its session, and the events of the page by element."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.session = secrets.token_hex(6)
        # No proxies of the environment: everything is on this machine.
        self.http = httpx.Client(base_url=address, timeout=300.0, trust_env=False)
        self.page = self.http.get("/").raise_for_status()
        self.config: dict[str, Any] = self.http.get("/config").raise_for_status().json()
        self._heart: socket.socket | None = None
        self._ids = {
            component["props"]["elem_id"]: component["id"]
            for component in self.config["components"]
            if component.get("props", {}).get("elem_id")
        }
        self._values = {
            component["id"]: component.get("props", {}).get("value")
            for component in self.config["components"]
        }

    def stay(self) -> None:
        """Open the connection that tells the server that the page is still open."""
        place = urlsplit(self.address)
        cookies = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        self._heart = socket.create_connection((str(place.hostname), int(place.port or 80)), 30)
        self._heart.sendall(
            f"GET {API}/heartbeat/{self.session} HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Cookie: {cookies}\r\n\r\n".encode()
        )
        self._heart.recv(64)

    def leave(self) -> None:
        """Close the page."""
        if self._heart is not None:
            self._heart.close()
        self.http.close()

    def event(self, element: str, kind: str) -> dict[str, Any]:
        """The event of an element, as the page's configuration describes it."""
        target = [self._ids[element], kind]
        return next(e for e in self.config["dependencies"] if target in e["targets"])

    def body(self, element: str, kind: str, values: dict[str, Any]) -> dict[str, Any]:
        """The request for an event: default values, except those given by element."""
        event = self.event(element, kind)
        given = {self._ids[name]: value for name, value in values.items()}
        data = [given.get(key, self._values[key]) for key in event["inputs"]]
        return {
            "data": data,
            "fn_index": event["id"],
            "event_data": None,
            "trigger_id": self._ids[element],
            "session_hash": self.session,
        }

    def join(self, element: str, kind: str, values: dict[str, Any]) -> httpx.Response:
        """Ask for an event; the answer is an event id, or a refusal."""
        return self.http.post(f"{API}/queue/join", json=self.body(element, kind, values))

    def messages(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Messages of the current events, parsed and as text, until the last one is completed."""
        with self.http.stream(
            "GET", f"{API}/queue/data", params={"session_hash": self.session}
        ) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    message = json.loads(line[5:])
                    yield message, line
                    if message["msg"] == "close_stream":
                        return

    def ask(self, element: str, kind: str, values: dict[str, Any]) -> tuple[bool, str]:
        """Whether an event succeeded, and the text of all messages.

        Raises:
            httpx.HTTPStatusError: the event was refused.
        """
        self.join(element, kind, values).raise_for_status()
        told, success = [], False
        for message, line in self.messages():
            told.append(line)
            if message["msg"] == "process_completed":
                success = message["success"]
        return success, "\n".join(told)

    def send(self, name: str, content: bytes) -> httpx.Response:
        """Upload a file."""
        return self.http.post(
            f"{API}/upload",
            params={"upload_id": secrets.token_hex(5)},
            files={"files": (name, content)},
        )

    def upload(self, element: str, name: str, content: bytes) -> tuple[bool, str]:
        """Upload a file and hand it to an element, as a drop on the page does."""
        path = self.send(name, content).raise_for_status().json()[0]
        return self.ask(element, "upload", {element: file_data(path, name)})

    def file(self, path: str) -> httpx.Response:
        """Fetch a file of a result."""
        return self.http.get(f"{API}/file={path}")


def file_data(path: str, name: str = "picture.png", **more: Any) -> dict[str, Any]:
    """A description of a file, as Gradio's client sends it."""
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}, **more}


def result_path(text: str, ending: str) -> str:
    """The path of a result in the messages of a run."""
    found = re.findall(rf'"path": ?"([^"]+\.{ending})"', text)
    if not found:
        raise LookupError(f"no .{ending} file in the messages")
    return str(found[-1])


def wait_until(condition: Any, seconds: float, pause: float = 0.2) -> bool:
    """Whether a condition became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
