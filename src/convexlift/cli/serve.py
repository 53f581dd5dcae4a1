"""``convexlift serve``."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from convexlift.cli.app import (
    Debug,
    Device,
    choose_device,
    console,
    explained,
    one_sentence_errors,
    register,
)
from convexlift.web.limits import MEGABYTE, Limits

_DEFAULT = Limits()


@register(
    "convexlift serve\nconvexlift serve --port 8080 --no-open\n"
    "convexlift serve --host 0.0.0.0 --name images.example.org"
)
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen at; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 7860,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name under which others reach it, e.g. a proxy's name; repeatable."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="The path under which a proxy serves the page, e.g. /convexlift.")
    ] = "",
    max_upload: Annotated[float, typer.Option(help="Largest upload, in MB.")] = (
        _DEFAULT.upload_bytes / MEGABYTE
    ),
    max_pixels: Annotated[int, typer.Option(help="Largest picture, in pixels.")] = _DEFAULT.pixels,
    max_seconds: Annotated[float, typer.Option(help="Longest run, in seconds.")] = _DEFAULT.seconds,
    runs: Annotated[int, typer.Option(help="Number of simultaneous runs.")] = _DEFAULT.runs,
    waiting: Annotated[int, typer.Option(help="Number of runs that may wait.")] = _DEFAULT.waiting,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads on the processor for all runs together; by default OMP_NUM_THREADS, else "
            "one for each core."
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    debug: Debug = False,
) -> None:
    """Serve the web page: reconstruct pictures in a browser.

    It is reachable from this machine only, unless --host says otherwise. Ctrl-C stops it.
    """
    from convexlift.web.server import ServerOptions, listen, require_gradio
    from convexlift.web.server import serve as run_server

    screen = console()
    with one_sentence_errors(debug):
        with explained():
            options = ServerOptions(
                host=host,
                port=port,
                names=tuple(name or ()),
                root_path=root_path,
                open_browser=open_browser,
                limits=Limits(
                    upload_bytes=round(max_upload * MEGABYTE),
                    pixels=max_pixels,
                    seconds=max_seconds,
                    runs=runs,
                    waiting=waiting,
                ),
                device=choose_device(device),
                threads=threads,
            )
            require_gradio()
            place = listen(options)
        # Ctrl-C is the normal way to stop.
        with place, contextlib.suppress(KeyboardInterrupt):
            run_server(
                options,
                place,
                lambda address: screen.print(
                    f"convexlift is at {address} - Ctrl-C stops it", highlight=False
                ),
            )
