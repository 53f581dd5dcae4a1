"""Load of the web page: many visitors at once, with uploads, runs and downloads.

    python -m soak.page                                     # 20 clients for 120 s
    python -m soak.page --clients 5 --seconds 30 --json page.json

The server is a process of its own on 127.0.0.1. Each client opens the page, uploads a picture,
starts a run, fetches the ZIP file, sometimes aborts an upload or leaves during a run, and starts
again. Exit status: 0 if memory is within ``--room`` MB of its value before the load, no upload was
refused and no file is left, 1 otherwise. Refused runs are only counted: the queue of runs is
bounded.
"""

from __future__ import annotations

import argparse
import io
import json
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

from soak.page_visitor import API, PageVisitor, result_path, serving, wait_until

SIDES = (64, 128, 256, 512)
SETTLE_SECONDS = 90.0


class Load:
    """Clients that visit the page until the time is over, and counts of the outcomes."""

    def __init__(self, address: str, clients: int, seconds: float, seed: int) -> None:
        self.address, self.clients = address, clients
        self.end = time.monotonic() + seconds
        self.seeds = np.random.SeedSequence(seed).spawn(clients)
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        """Visit with all clients at once."""
        threads = [threading.Thread(target=self._visits, args=[seed]) for seed in self.seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _visits(self, seed: np.random.SeedSequence) -> None:
        generator = np.random.default_rng(seed)
        while time.monotonic() < self.end:
            try:
                self._visit(generator)
            except Exception as error:
                self.failures[f"{type(error).__name__}: {error}"[:200]] += 1
                if not isinstance(error, httpx.HTTPError | LookupError):
                    traceback.print_exc()
                time.sleep(0.5)

    def _visit(self, generator: np.random.Generator) -> None:
        visitor = PageVisitor(self.address)
        self.counts["visits"] += 1
        try:
            visitor.stay()
            for _ in range(int(generator.integers(1, 4))):
                if time.monotonic() > self.end:
                    return
                if generator.random() < 0.1:
                    self._abort_upload(visitor)
                if self._upload(visitor, generator) and not self._run(visitor, generator):
                    return
        finally:
            visitor.leave()

    def _upload(self, visitor: PageVisitor, generator: np.random.Generator) -> bool:
        self.counts["uploads"] += 1
        try:
            success, text = visitor.upload("denoise-file", "picture.png", picture(generator))
        except httpx.HTTPStatusError as error:
            self.counts["uploads refused"] += 1
            self.counts[f"uploads refused with {error.response.status_code}"] += 1
            time.sleep(0.2)
            return False
        # To Gradio, errors that the page shows are warnings, and the event a success.
        if not success or '"level":"warning"' in text.replace(" ", ""):
            self.counts["uploads failed"] += 1
            return False
        return True

    def _run(self, visitor: PageVisitor, generator: np.random.Generator) -> bool:
        """Start a run; whether the visitor stays on the page."""
        self.counts["runs"] += 1
        values = {"denoise-mode": "own", "denoise-level": 0.1}
        answer = visitor.join("denoise-start", "click", values)
        if answer.status_code != 200:
            self.counts["runs refused"] += 1
            time.sleep(0.5)
            return True
        leaves = generator.random() < 0.15
        told = []
        for message, line in visitor.messages():
            told.append(line)
            if leaves and message["msg"] == "process_generating":
                self.counts["runs left"] += 1
                return False
        try:
            archive = visitor.file(result_path("\n".join(told), "zip"))
        except LookupError:
            self.counts["runs without a result"] += 1
            return True
        self.counts["runs done" if archive.status_code == 200 else "downloads failed"] += 1
        return True

    def _abort_upload(self, visitor: PageVisitor) -> None:
        self.counts["uploads aborted"] += 1
        place = urlsplit(self.address)
        with socket.create_connection((str(place.hostname), int(place.port or 80)), 30) as half:
            half.sendall(
                f"POST {API}/upload HTTP/1.1\r\nHost: {place.netloc}\r\n"
                "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000000\r\n\r\n"
                '--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n'
                "\r\n".encode()
                + bytes(100_000)
            )


def picture(generator: np.random.Generator) -> bytes:
    """A PNG file: smooth colours with noise, of one of ``SIDES``."""
    side = int(generator.choice(SIDES))
    across = np.linspace(0, 200, side)[:, None, None] + generator.integers(0, 50, (side, side, 3))
    file = io.BytesIO()
    pixels = across.astype(np.uint8)
    Image.fromarray(pixels if generator.random() < 0.5 else pixels[..., 0]).save(file, "PNG")
    return file.getvalue()


def resident(pid: int) -> float:
    """The memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"process {pid} does not report its memory")


def visitors_files(folder: Path) -> list[Path]:
    """The files of a server, without its log and its lock."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if path.name not in ("errors.txt", "server.lock")]


def settled(pid: int) -> float:
    """The memory once it has not changed by more than 2 MB for three seconds."""
    last, since = resident(pid), time.monotonic()
    end = since + 60
    while time.monotonic() - since < 3 and time.monotonic() < end:
        time.sleep(0.25)
        if abs((now := resident(pid)) - last) > 2:
            last, since = now, time.monotonic()
    return last


def main() -> int:
    """Run the soak; the exit status."""
    parser = argparse.ArgumentParser(description="Load the web page, and check that it recovers.")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", type=float, default=200.0, help="MB that memory may have grown")
    parser.add_argument("--max-seconds", type=float, default=5.0, help="longest run of the server")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="convexlift-soak-") as folder,
        serving(Path(folder), "--max-seconds", str(options.max_seconds)) as (address, process),
    ):
        before = settled(process.pid)
        load = Load(address, options.clients, options.seconds, options.seed)
        peak, ended = before, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.5):
                peak = max(peak, resident(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        load.run()
        ended.set()
        watcher.join()
        wait_until(lambda: resident(process.pid) < before + options.room, SETTLE_SECONDS, 1.0)
        after = resident(process.pid)
        wait_until(lambda: not visitors_files(Path(folder)), 20.0)
        files = visitors_files(Path(folder))
        errors = (Path(folder) / "errors.txt").read_text()
    record = {
        "seed": options.seed,
        "clients": options.clients,
        "seconds": options.seconds,
        "memory_before_mb": round(before),
        "memory_peak_mb": round(peak),
        "memory_after_mb": round(after),
        "files_left": len(files),
        "counts": dict(sorted(load.counts.items())),
        "failures": dict(load.failures.most_common(10)),
        "server_errors": errors[-2000:],
    }
    print(json.dumps(record, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    refused = load.counts["uploads refused"] + load.counts["uploads failed"]
    if not load.counts["runs done"]:
        print("soak: no run was completed", file=sys.stderr)
    if refused:
        print(f"soak: {refused} uploads were refused or failed", file=sys.stderr)
    if files:
        print(f"soak: {len(files)} files of visitors who left are still there", file=sys.stderr)
    if after > before + options.room:
        print(f"soak: memory grew from {before:.0f} to {after:.0f} MB", file=sys.stderr)
    failed = refused or files or after > before + options.room or not load.counts["runs done"]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
