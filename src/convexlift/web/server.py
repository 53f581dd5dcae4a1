"""The server of the page: private folders, no outside requests, and a clean end."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import re
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from threading import Thread, Timer
from typing import Any

import torch

from convexlift.files.formats import pillow
from convexlift.web.folders import server_folder
from convexlift.web.guard import LOOPBACK, Guard
from convexlift.web.housekeeping import Housekeeper, share_memory_among_threads
from convexlift.web.limits import Limits

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_PATH = re.compile(r"(/[\w.~-]+)+")
NEEDED = 'the web page needs gradio: pip install "convexlift[web]"'


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the page is, and for whom.

    Args:
        host: the address to listen at; the default is reached from this machine only.
        port: of it; 0 for any that is free.
        names: further host names that the server answers to, for example behind a proxy. A server
            at another address than the loopback answers to any, unless there are some.
        root_path: under which a proxy shows the page, for example ``/convexlift``; a slash at its
            end makes no difference.
        open_browser: whether to show the page to whoever starts it.
        limits: of visitors.
        device: where to compute.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    names: Sequence[str] = ()
    root_path: str = ""
    open_browser: bool = False
    limits: Limits = field(default_factory=Limits)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"a name is that of a host, such as images.example.org, without scheme, port "
                    f"and path; got {name!r}"
                )
        object.__setattr__(self, "root_path", self.root_path.rstrip("/"))
        if self.root_path and not _PATH.fullmatch(self.root_path):
            raise ValueError(f"the root path is a path such as /convexlift, got {self.root_path!r}")

    @property
    def local(self) -> bool:
        """Whether it is reached from this machine only."""
        address = _address(self.host)
        return self.host.lower() == "localhost" or (address is not None and address.is_loopback)

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """What it may be called in requests; None is anything, for who is seen by others."""
        return (*LOOPBACK, self.host, *self.names) if self.local or self.names else None

    def url(self, port: int) -> str:
        """Where its owner finds the page; 0.0.0.0 is every address, and no place to go to."""
        address, host = _address(self.host), self.host
        if address is not None and address.is_unspecified:
            host = "localhost"
        elif address is not None and address.version == 6:
            host = f"[{host}]"
        return f"http://{host}:{port}{self.root_path}/"


def require_gradio() -> None:
    """ImportError, with what to do, where the extra is not installed.

    It is looked for and not imported: it makes folders when it is, and not yet where it should.
    """
    if importlib.util.find_spec("gradio") is None or importlib.util.find_spec("uvicorn") is None:
        raise ImportError(NEEDED)


@contextlib.contextmanager
def application(options: ServerOptions) -> Iterator[Any]:
    """The ASGI application, with a folder that lives as long as it does."""
    require_gradio()
    _quiet_gradio()
    with server_folder() as root, _environment("GRADIO_TEMP_DIR", str(root)):
        import fastapi
        import gradio

        from convexlift.web.page import PagePolicy, build
        from convexlift.web.routes import own_routes
        from convexlift.web.sessions import Sessions
        from convexlift.web.style import CSS, HEAD, theme

        sessions = Sessions(root, options.limits)
        housekeeper = Housekeeper(sessions.sweep)
        try:
            blocks = build(sessions, options.limits, options.device, housekeeper.ask)
            app = gradio.mount_gradio_app(
                fastapi.FastAPI(
                    docs_url=None, redoc_url=None, openapi_url=None, routes=own_routes(sessions)
                ),
                blocks,
                path="/",
                root_path=options.root_path or None,
                max_file_size=options.limits.upload_bytes,
                show_error=False,
                footer_links=[],
                run_history=False,
                enable_monitoring=False,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                theme=theme(gradio),
                css=CSS,
                head=HEAD,
            )
            # Gradio checks the paths of events only in pages that it launched itself; this page is
            # mounted. The guard checks them first, and Gradio again.
            blocks.has_launched = True
            yield Guard(
                app,
                options.limits.upload_bytes,
                options.hosts,
                PagePolicy(blocks, sessions),
                options.root_path,
            )
        finally:
            housekeeper.end()
            sessions.close_all()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable for the time of the block: Gradio's components read their folder from it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def listen(options: ServerOptions) -> socket.socket:
    """The socket of the server, before anything else is made.

    Raises:
        ValueError: nobody can listen there, and why.
    """
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        hint = "; port 0 is any that is free" if error.errno == errno.EADDRINUSE else ""
        reason = (error.strerror or str(error)).split(" (")[0].lower()
        raise ValueError(
            f"the server cannot listen at {options.host}, port {options.port}: {reason}{hint}"
        ) from None


def serve(options: ServerOptions, at: socket.socket, tell: Callable[[str], object]) -> None:
    """Serve until Ctrl-C; ``tell`` is given the address once it can be reached."""
    require_gradio()
    import uvicorn

    share_memory_among_threads()
    # A second fence, behind the checks of uploads: Pillow refuses twice this.
    pillow().MAX_IMAGE_PIXELS = 4 * options.limits.pixels
    # Threads of runs side by side would wait for each other more than they compute.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.limits.runs))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # What is wrong with a request is told to its sender.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    # Uvicorn ends well and then sends the signal again: what is left to do is done all the same.
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
            """Says where it is once it answers."""

            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    _announce(options, at.getsockname()[1], tell)
                    Thread(target=_warm_up, args=[options.device]).start()

        Server(config).run(sockets=[at])


def _announce(options: ServerOptions, port: int, tell: Callable[[str], object]) -> None:
    address = options.url(port)
    tell(address)
    if options.open_browser:
        Timer(0.2, webbrowser.open, [address]).start()


def _warm_up(device: torch.device) -> None:
    """A tiny run, for all that is imported on the way: seconds the first visitor would wait."""
    from convexlift.web.jobs import DenoisingJob
    from convexlift.web.results import record
    from convexlift.web.running import Run
    from convexlift.web.uploads import Picture

    blank = Picture(torch.full((1, 1, 16, 16), 0.5), "blank")
    run = Run(DenoisingJob(picture=blank, regularizer="photo-any-size"), 1.0, device).start()
    run.join()
    if run.outcome is not None:  # what went wrong is in the log
        record(run.outcome)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The host, unless it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _quiet_gradio() -> None:
    """No telemetry, no look for newer versions: before gradio is imported, which reads these."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
