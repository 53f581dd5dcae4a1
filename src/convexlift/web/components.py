"""Gradio components that the tabs share: file inputs, the brush, buttons, and a run on display."""

from __future__ import annotations

import json
import logging
import time
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import wraps
from typing import Any

import gradio as gr
import torch

from convexlift.web import html
from convexlift.web.limits import Limits, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.requests import RUNS, SMALL, Queue
from convexlift.web.result import record, write_files
from convexlift.web.run import PageJob, Run, RunResult
from convexlift.web.visitors import Session, Sessions

Updates = dict[Any, Any]
QUIET: dict[str, Any] = {
    "show_progress": "hidden", "api_visibility": "private", "concurrency_id": SMALL,
}  # fmt: skip
"""Options of short events. They are queued, since only errors of queued events reach the page."""
_MOST_UNREAD = 10
_PLOT_SECONDS = 0.2
_SCROLL_ON_PHONES = """(...values) => {
  if (window.innerWidth < 700)
    document.getElementById('%s-status').scrollIntoView({behavior: 'smooth'});
  return values; }"""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """The parts of the server that all tabs use."""

    sessions: Sessions
    queue: Queue
    executor: Executor  # its threads compute runs
    device: torch.device
    tidy: Callable[[], None]  # called after memory was freed

    @property
    def limits(self) -> Limits:
        """Limits on uploads, runs and visitors."""
        return self.sessions.limits

    def session(self, request: gr.Request) -> Session:
        """The session of an event."""
        key = getattr(request, "session_hash", None)
        if not key:
            raise PageError("This page needs a session.", "Reload it.")
        return self.sessions.of(str(key))

    def keeps_up(self, request: gr.Request) -> bool:
        """Whether the browser reads its messages: unread pictures would fill the memory."""
        return self.queue.unread(str(request.session_hash)) < _MOST_UNREAD


def tell(error: Exception) -> PageError:
    """Show an error in the corner of the page, and log unexpected ones."""
    if not isinstance(error, PageError):
        log.error("a request failed", exc_info=error)
        name = type(error).__name__
        error = PageError(f"Something went wrong here ({name}).", "Try again, or reload the page.")
    # Gradio shows errors on top of the component in use, and warnings in the corner.
    gr.Warning(str(error), duration=12, title="Please check")
    return error


def tells_errors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of event handlers: an error is shown, and no component changes."""

    @wraps(handler)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return handler(*arguments, **named)
        except Exception as error:
            tell(error)
            return gr.skip()

    return wrapped


def plain_input(base: Any, value: Callable[[Any], Any], **options: Any) -> Any:
    """A component whose handlers get ``value(payload)``; Gradio itself opens no file."""

    def preprocess(self: Any, payload: Any) -> Any:
        return None if payload is None else value(payload)

    # A method of the class, since Gradio makes a new object of the class for each visitor. Gradio's
    # metaclass is bypassed: it would write a stub file beside the source of the class.
    parts = {"is_template": True, "preprocess": preprocess, "__module__": __name__}
    return ABCMeta.__new__(type(base), f"Plain{base.__name__}", (base,), parts)(**options)


def file_input(endings: Sequence[str], **options: Any) -> Any:
    """A file input; its value is the path, or None for anything but one file.

    Gradio's own creates an empty file for each upload, and trusts the ending of the name.

    Args:
        endings: of files that browsers offer, and to which telephones convert photographs. Others
            can be dropped, and are refused with a hint: see ``templates/uploads.js``.
        options: of Gradio's component.
    """

    def path(payload: Any) -> str | None:
        found = getattr(payload, "path", None)
        return found if isinstance(found, str) else None

    classes = ["drop", *(f"takes-{ending.removeprefix('.')}" for ending in endings)]
    return plain_input(gr.File, path, height=96, elem_classes=classes, **options)


def mask_editor(**options: Any) -> Any:
    """A picture to paint over; its value describes the drawing, not yet decoded."""
    return plain_input(
        gr.ImageEditor,
        lambda payload: payload,
        sources=(),
        transforms=(),
        layers=False,
        interactive=True,
        brush=gr.Brush(
            default_size=14, colors=["#d55e00"], default_color="#d55e00", color_mode="fixed"
        ),
        eraser=gr.Eraser(default_size=20),
        buttons=["fullscreen"],
        **options,
    )


class Controls:
    """The Start and Stop buttons of a tab, which stay visible when the page is scrolled."""

    def __init__(self, name: str, site: Site) -> None:
        self.name, self.site = name, site
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button(
                "Start", variant="primary", scale=3, min_width=120, elem_id=f"{name}-start"
            )
            self.stop = gr.Button(
                "Stop", variant="stop", scale=1, min_width=80, interactive=False,
                elem_id=f"{name}-stop",
            )  # fmt: skip

    def connect(
        self, inputs: set[Any], outputs: list[Any], status: Any,
        stream: Callable[[Session, Updates, gr.Request], Iterator[Updates]],
    ) -> None:  # fmt: skip
        """Connect Start to ``stream(session, values, request)``, and Stop to its end."""

        def begin(values: Updates, request: gr.Request) -> Iterator[Updates]:
            try:
                if not self.site.keeps_up(request):
                    raise PageError("The page has stopped reading its messages.", "Reload it.")
                yield from stream(self.site.session(request), values, request)
            except Exception as error:
                shown = tell(error)
                yield {status: html.banner(shown.sentence, "bad", shown.hint)}
            self.site.tidy()
            yield self.running(False)

        def end(request: gr.Request) -> None:
            self.site.session(request).stop()

        # The browser reacts by itself: the server may be busy, and the solver ends at its next
        # check.
        stopping = json.dumps([html.stopping(), {"interactive": False, "__type__": "update"}])

        self.start.click(
            begin, inputs, [*outputs, self.start, self.stop], concurrency_id=RUNS,
            concurrency_limit=self.site.limits.runs, show_progress="minimal",
            show_progress_on=status, api_visibility="private", js=_SCROLL_ON_PHONES % self.name,
        )  # fmt: skip
        self.stop.click(end, None, None, queue=False, api_visibility="private")
        self.stop.click(
            None, None, [status, self.stop], js=f"() => {stopping}", api_visibility="private"
        )

    def running(self, is_running: bool) -> Updates:
        """Updates of the buttons."""
        return {
            self.start: gr.update(interactive=not is_running),
            self.stop: gr.update(interactive=is_running),
        }


COMPARED = {"ct": "Filtered back projection and result"}
"""The labels of sliders in tabs where the first picture is not the data."""


class RunDisplay:
    """Status, picture, plot, numbers, maps and downloads of a run."""

    def __init__(self, name: str, site: Site, picture: InputPicture) -> None:
        self.name, self.site = name, site
        self.status = gr.HTML(html.banner(html.READY), padding=False, elem_id=f"{name}-status")
        with gr.Row():
            with gr.Column(min_width=260):
                self.picture = gr.HTML(
                    html.chosen_picture(picture), padding=False, elem_id=f"{name}-picture"
                )
                self.slider = gr.ImageSlider(
                    visible=False, label=COMPARED.get(name, "Before and after"),
                    elem_id=f"{name}-slider", interactive=False, buttons=["fullscreen"],
                    type="filepath",
                )  # fmt: skip
            with gr.Column(min_width=260):
                self.plot = gr.HTML(
                    html.convergence_plot(()), padding=False, elem_id=f"{name}-plot"
                )
                self.facts = gr.HTML(padding=False, elem_id=f"{name}-facts")
        labels = {"image": "Image (PNG)", "json": "Numbers (JSON)", "zip": "Everything (ZIP)"}
        with gr.Row(visible=False) as self.downloads:
            self.files = {
                kind: gr.DownloadButton(label, size="sm", min_width=120, elem_id=f"{name}-{kind}")
                for kind, label in labels.items()
            }
        self.details = gr.HTML(padding=False, elem_id=f"{name}-details")
        self.shown = [
            self.status, self.picture, self.slider, self.plot, self.facts, self.downloads,
            self.details,
        ]  # fmt: skip
        """Components that change when another picture is chosen."""

    def cleared(self, status: str) -> Updates:
        """Updates that remove the previous result."""
        return {
            self.status: status,
            self.picture: gr.update(visible=True),
            self.slider: gr.update(visible=False, value=None),
            self.plot: html.convergence_plot(()),
            self.facts: "",
            self.details: "",
            self.downloads: gr.update(visible=False),
        }

    def chosen(self, picture: InputPicture | None, ready: str) -> Updates:
        """Updates that show another picture before its run; None if there is none yet."""
        status = html.banner(ready if picture is not None else html.AWAITED)
        shown = "" if picture is None else html.chosen_picture(picture)
        return {**self.cleared(status), self.picture: gr.update(value=shown, visible=True)}

    def stream(
        self, session: Session, job: PageJob, controls: Controls, request: gr.Request
    ) -> Iterator[Updates]:
        """Updates from the press of Start to the last picture."""
        seconds = self.site.limits.seconds_for(*job.picture.size)
        run = Run(job, seconds, self.site.executor, self.site.device)
        session.start(run)
        tolerance = job.options["tolerance"]
        yield {**self.cleared(html.progress((), tolerance)), **controls.running(True)}
        drawn = 0.0
        for snapshot in run.states():
            if not self.site.keeps_up(request):
                continue
            status = html.stopping() if run.stopping else html.progress(snapshot.points, tolerance)
            updates: Updates = {self.status: status}
            picture = html.live_picture(snapshot, job)
            if picture is not None:
                updates[self.picture] = picture
            if snapshot.points and time.monotonic() - drawn > _PLOT_SECONDS:
                updates[self.plot] = html.convergence_plot(snapshot.points)
                drawn = time.monotonic()
            if snapshot.prepared is not None and snapshot.x is None:
                updates[self.details] = html.sinogram(self.name, snapshot.prepared)
            yield updates
        session.release(run)
        yield self._result(session, run.result())

    def _result(self, session: Session, result: RunResult) -> Updates:
        numbers = record(result)
        files = write_files(result, numbers, session.new_folder(self.name))
        return {
            self.status: html.verdict(result),
            self.picture: gr.update(visible=False),
            self.slider: gr.update(value=(str(files["before"]), str(files["after"])), visible=True),
            self.plot: html.convergence_plot(result.points, ended=True),
            self.facts: html.facts(self.name, result, numbers),
            self.details: html.details(self.name, result),
            self.downloads: gr.update(visible=True),
            **{b: gr.update(value=str(files[kind])) for kind, b in self.files.items()},
        }
