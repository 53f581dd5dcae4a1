"""Files that visitors of the web page send, and files that they must not reach."""

from __future__ import annotations

import io
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

from soak.page_visitor import file_data


def png(size=24, value=90):
    file = io.BytesIO()
    pixels = np.linspace(0, value, size * size).reshape(size, size).astype(np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@contextmanager
def listening():
    """The URL of another server, and the list of paths that were requested from it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png())

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/a.png", asked
        server.shutdown()


def contents(folder):
    """All files of the server, without its log and empty files that Gradio creates."""
    return {
        path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "errors.txt" and path.stat().st_size
    }


def server_root(folder):
    return next(folder.glob("convexlift-web-*"))


def strange_files(tmp_path, folder, other, listener):
    """Descriptions of files that are not the visitor's, by name."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(value=201))
    notes = tmp_path / "notes.txt"
    notes.write_text("a secret")
    theirs = other.send("theirs.png", png(value=77)).json()[0]
    return {
        "absolute": file_data(str(secret)),
        "another type": file_data(str(notes), "notes.png"),
        "system": file_data("/etc/passwd"),
        "detour": file_data(f"{server_root(folder)}/../../{tmp_path.name}/secret.png"),
        "relative": file_data("../../../../../../etc/passwd"),
        "folder": file_data(str(tmp_path)),
        "gone": file_data(str(tmp_path / "nothing.png")),
        "lock": file_data(str(server_root(folder) / "server.lock")),
        "address": file_data(listener[0]),
        "capitals": file_data(listener[0].replace("http", "HTTP")),
        "without scheme": file_data(listener[0].removeprefix("http:")),
        "file scheme": file_data(f"file://{secret}"),
        "no meta": {"path": str(secret)},
        "address alone": {"url": listener[0], "meta": {"_type": "gradio.FileData"}},
        "stream": file_data(str(secret), is_stream=True),
        "theirs": file_data(theirs),
        "number": file_data(7),
        "list": file_data([str(secret)]),
    }


def linked(visitor, tmp_path):
    """A link to another file, put in the visitor's own folder."""
    secret = tmp_path / "linked.png"
    secret.write_bytes(png(value=202))
    link = Path(visitor.send("mine.png", png()).json()[0]).with_name("link.png")
    link.symlink_to(secret)
    return file_data(str(link))
