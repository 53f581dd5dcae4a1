"""The server: its address, private folder, housekeeping, and clean end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import torch

from convexlift import threads
from convexlift.files.formats import pillow
from convexlift.web.limits import SCALABLE, Limits

try:
    import fcntl
except ImportError:  # no locks on Windows, where leftovers stay
    fcntl = None  # type: ignore[assignment]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEEDED = 'the web page needs gradio: pip install "convexlift[web]"'
PREFIX = "convexlift-web-"
_LOCK = "server.lock"
_UNLOCKED_SECONDS = 86_400.0  # after which a folder without a lock file is a leftover
_TIDY_SECONDS, _PAUSE = 60.0, 2.0
_ARENA_MAX = -8  # M_ARENA_MAX in glibc's malloc.h
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_PATH = re.compile(r"(/[\w.~-]+)+")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the server.

    Args:
        host: the address to listen at; the default can be reached from this machine only.
        port: the port; 0 takes any free one.
        names: further host names that the server answers to, for example behind a proxy. Without
            them, a server that others can reach answers to all names.
        root_path: the path under which a proxy shows the page, for example ``/convexlift``; a
            slash at its end makes no difference.
        open_browser: whether to open the page in a browser.
        limits: limits on uploads, runs and visitors.
        device: the device to compute on.
        threads: threads on the processor for all runs together; by default OMP_NUM_THREADS, else
            one for each core.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    names: Sequence[str] = ()
    root_path: str = ""
    open_browser: bool = False
    limits: Limits = field(default_factory=Limits)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            threads.require(self.threads)
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    "a name is a host name such as images.example.org, without scheme, port and "
                    f"path; got {name!r}"
                )
        object.__setattr__(self, "root_path", self.root_path.rstrip("/"))
        if self.root_path and not _PATH.fullmatch(self.root_path):
            raise ValueError(f"the root path is a path such as /convexlift, got {self.root_path!r}")

    @property
    def local(self) -> bool:
        """Whether the server can be reached from this machine only."""
        address = _address(self.host)
        return self.host.lower() == "localhost" or (address is not None and address.is_loopback)

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The host names that requests may use; None for any."""
        return (*LOOPBACK, self.host, *self.names) if self.local or self.names else None

    def url(self, port: int) -> str:
        """The URL of the page on this machine."""
        address, host = _address(self.host), self.host
        if address is not None and address.is_unspecified:  # 0.0.0.0 means every address
            host = "localhost"
        elif address is not None and address.version == 6:
            host = f"[{host}]"
        return f"http://{host}:{port}{self.root_path}/"


def require_gradio() -> None:
    """Raise ImportError, with advice, if the extra is not installed.

    Gradio itself is imported later: its import creates folders and reads the environment.
    """
    if importlib.util.find_spec("gradio") is None or importlib.util.find_spec("uvicorn") is None:
        raise ImportError(NEEDED)


@contextlib.contextmanager
def application(options: ServerOptions) -> Iterator[Any]:
    """The ASGI application; its folder is deleted at the end."""
    require_gradio()
    with server_folder() as root:
        # Gradio reads these when it is imported: no telemetry, no search for newer versions.
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["GRADIO_TEMP_DIR"] = str(root)
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("DO_NOT_TRACK", "1")
        # PyTorch makes this folder, which stays empty; by default among the temporary files.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(root / "torch"))
        import fastapi
        import gradio

        from convexlift.web.page import appearance, build
        from convexlift.web.requests import RequestFilter
        from convexlift.web.uploads import upload_routes
        from convexlift.web.visitors import Sessions

        limits = options.limits
        sessions = Sessions(root, limits)
        executor = ThreadPoolExecutor(limits.runs, "convexlift-run")
        housekeeper = Housekeeper(sessions.sweep)
        try:
            blocks, queue = build(sessions, executor, options.device, housekeeper.ask)
            app = gradio.mount_gradio_app(
                fastapi.FastAPI(
                    docs_url=None, redoc_url=None, openapi_url=None, routes=upload_routes(sessions)
                ),
                blocks,
                path="/",
                root_path=options.root_path or None,
                max_file_size=limits.upload_bytes,
                show_error=False,
                footer_links=[],
                run_history=False,
                enable_monitoring=False,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                **appearance(),
            )
            # Gradio checks the paths of events only in pages that it launched itself, and this one
            # is mounted. The filter checks them first, and Gradio again.
            blocks.has_launched = True
            yield RequestFilter(
                app,
                sessions,
                queue,
                body_bytes=limits.upload_bytes,
                hosts=options.hosts,
                root_path=options.root_path,
            )
        finally:
            housekeeper.end()
            sessions.close_all()
            executor.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder, deleted at the end; leftovers of killed servers are deleted first.

    The folder is locked while the server lives, so that leftovers can be recognized.
    """
    remove_leftovers(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    # The lock file gets its name after it is locked: an unlocked one means that its server died.
    unnamed = root / f"{_LOCK}.new"
    try:
        with unnamed.open("w") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                unnamed.rename(root / _LOCK)
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Delete the folders of this user's servers that no longer run."""
    if fcntl is None:
        return
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # Everyone can write to the parent: links and folders of other users are not touched.
            own = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
            if own and folder.is_dir() and not folder.is_symlink() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False  # its server is alive
    except FileNotFoundError:  # its server is starting, or was killed at that moment
        return time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS


class Housekeeper(Thread):
    """A thread that calls ``tidy`` and returns free memory, every minute and soon after ``ask``."""

    def __init__(self, tidy: Callable[[], None]) -> None:
        super().__init__(name="convexlift-tidy", daemon=True)
        self._tidy, self._asked, self._ended = tidy, Event(), Event()
        self.start()

    def ask(self) -> None:
        """Tidy up soon."""
        self._asked.set()

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._asked.set()
        self.join(10)

    def run(self) -> None:
        """Wait, and tidy up."""
        while not self._ended.is_set():
            self._asked.wait(_TIDY_SECONDS)
            if self._ended.wait(_PAUSE):  # requests in quick succession are served together
                return
            self._asked.clear()
            self._tidy()
            gc.collect()
            _call_libc("malloc_trim", 0)


def _call_libc(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        getattr(ctypes.CDLL(None), function)(*arguments)


def listen(options: ServerOptions) -> socket.socket:
    """The socket of the server.

    Raises:
        ValueError: the reason, if it is impossible to listen there.
    """
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        return socket.create_server(place[:2], family=family)  # IPv6 places have four entries
    except OSError as error:
        hint = "; port 0 takes any free one" if error.errno == errno.EADDRINUSE else ""
        reason = (error.strerror or str(error)).split(" (")[0].lower()
        raise ValueError(
            f"the server cannot listen at {options.host}, port {options.port}: {reason}{hint}"
        ) from None


def serve(options: ServerOptions, at: socket.socket, tell: Callable[[str], object]) -> None:
    """Serve until Ctrl-C; ``tell`` is called with the URL once the server answers."""
    import uvicorn

    # One memory arena for all threads. glibc gives each thread its own, and keeps up to 64 MB at
    # the end of each, which no call returns to the system: hundreds of megabytes after a few runs.
    _call_libc("mallopt", _ARENA_MAX, 1)
    # A second limit, behind the checks of uploads: Pillow refuses twice this.
    pillow().MAX_IMAGE_PIXELS = 4 * SCALABLE * options.limits.pixels
    # Simultaneous runs would otherwise compete for all cores, and take longer. The cores free now
    # say little about later, so the load is not counted.
    given = torch.get_num_threads() if threads.COUNT in os.environ else threads.available_cores()
    torch.set_num_threads(max(1, (options.threads or given) // options.limits.runs))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # Errors in a request are reported to its sender.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    # Uvicorn shuts down and then sends itself the signal again, which must not skip the cleanup.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with application(options) as app:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws="none",
            proxy_headers=True,
            forwarded_allow_ips="127.0.0.1",
            timeout_graceful_shutdown=2,
        )

        class Server(uvicorn.Server):  # type: ignore[misc]
            """Announces its URL once it answers."""

            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    url = options.url(at.getsockname()[1])
                    tell(url)
                    if options.open_browser:
                        Timer(0.2, webbrowser.open, [url]).start()
                    warm_up.start()

        warm_up = Thread(target=_warm_up, args=[options.device])
        try:
            Server(config).run(sockets=[at])
        finally:
            if warm_up.ident is not None:  # started; it may still write to the folder
                warm_up.join()


def _warm_up(device: torch.device) -> None:
    """Start a tiny run, which imports modules that would cost the first visitor seconds."""
    from convexlift.reconstruction.options import DenoiseOptions
    from convexlift.web.html import details, facts
    from convexlift.web.pictures import InputPicture
    from convexlift.web.result import record
    from convexlift.web.run import PageJob, Run

    blank = InputPicture(torch.full((1, 1, 16, 16), 0.5), "blank", clean=True)
    options = {"simulate": True, "sigma": 0.1, "regularizer": DenoiseOptions.regularizer}
    job = PageJob("denoise", blank, options)
    with ThreadPoolExecutor(1) as executor, contextlib.suppress(Exception):  # logged by the run
        result = Run(job, 1.0, executor, device).start().result()
        facts(job.task, result, record(result))
        details(job.task, result)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The host, unless it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
