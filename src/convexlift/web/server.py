"""The server of the page: private folders, no outside requests, and a clean end."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import torch

from convexlift.picture_files import pillow
from convexlift.web.guard import LOOPBACK, Guard
from convexlift.web.limits import Limits

NEEDED = 'the web page needs gradio: pip install "convexlift[web]"'


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the page is, and for whom.

    Args:
        host: the address to listen at; the default is reached from this machine only.
        port: of it; 0 for any that is free.
        names: further host names that the server answers to, for example behind a proxy. A server
            at another address than the loopback answers to any.
        root_path: under which a proxy shows the page, for example ``/convexlift``.
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

    @property
    def local(self) -> bool:
        """Whether it is reached from this machine only."""
        return self.host in LOOPBACK


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
    root = Path(tempfile.mkdtemp(prefix="convexlift-web-")).resolve()
    # Components take their folder from here when they are made.
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(root)
    try:
        import fastapi
        import gradio

        from convexlift.web.page import build
        from convexlift.web.sessions import Sessions
        from convexlift.web.style import CSS, HEAD, theme

        sessions = Sessions(root, options.limits)
        try:
            app = gradio.mount_gradio_app(
                fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
                build(sessions, options.limits, options.device),
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
            hosts = (*LOOPBACK, *options.names) if options.local else None
            yield Guard(app, options.limits.upload_bytes, hosts)
        finally:
            sessions.close_all()
    finally:
        if before is None:
            os.environ.pop("GRADIO_TEMP_DIR", None)
        else:
            os.environ["GRADIO_TEMP_DIR"] = before
        shutil.rmtree(root, ignore_errors=True)


def serve(options: ServerOptions, tell: Callable[[str], object]) -> None:
    """Serve until Ctrl-C; ``tell`` is given the address once it can be reached."""
    require_gradio()
    import uvicorn

    # A second fence, behind the checks of uploads: Pillow refuses twice this.
    pillow().MAX_IMAGE_PIXELS = 4 * options.limits.pixels
    # Threads of runs side by side would wait for each other more than they compute.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.limits.runs))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # Uvicorn ends well and then sends the signal again: what is left to do is done all the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with application(options) as app:
        config = uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            log_level="warning",
            access_log=False,
            proxy_headers=True,
            forwarded_allow_ips="127.0.0.1",
            timeout_graceful_shutdown=2,
        )

        class Server(uvicorn.Server):  # type: ignore[misc]
            """Says where it is, which it knows once it listens."""

            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    port = self.servers[0].sockets[0].getsockname()[1]
                    _announce(options, port, tell)

        Server(config).run()


def _announce(options: ServerOptions, port: int, tell: Callable[[str], object]) -> None:
    name = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{name}:{port}{options.root_path}"
    tell(address)
    if options.open_browser:
        Timer(0.2, webbrowser.open, [address]).start()


def _quiet_gradio() -> None:
    """No telemetry, no look for newer versions: before gradio is imported, which reads these."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
