"""The right half of a tab: a run as it goes on, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from typing import Any

import gradio as gr
import torch

from convexlift.web import views
from convexlift.web.jobs import CTJob, Job
from convexlift.web.limits import Limits, PageError
from convexlift.web.places import RUNS
from convexlift.web.results import record, write_files
from convexlift.web.running import Outcome, Run, Slots, log
from convexlift.web.sessions import Session, Sessions

Updates = dict[Any, Any]
Handler = Callable[..., Any]
SAME = gr.skip()
"""An output that stays as it is."""
SHOWN = (SAME,) * 8
"""The same for all of ``Panel.shown``."""
_MOST_UNREAD = 10


class Visitors:
    """Who asks, and what may be asked: shared by all tabs."""

    def __init__(
        self,
        sessions: Sessions,
        limits: Limits,
        device: torch.device,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.sessions, self.limits, self.device = sessions, limits, device
        self.slots = Slots(limits.runs, freed)
        self.unread: Callable[[str], int] = lambda key: 0
        """How many messages to a session wait in the server; the page knows."""

    def keeps_up(self, request: gr.Request) -> bool:
        """Whether a visitor reads what is sent: pictures for who does not would fill the memory."""
        return self.unread(str(request.session_hash)) < _MOST_UNREAD

    def session(self, request: gr.Request) -> Session:
        """The visitor's own."""
        key = getattr(request, "session_hash", None)
        if not key:
            raise PageError("This page needs a session.", "Reload it.")
        return self.sessions.of(str(key))


def tell(error: Exception) -> PageError:
    """A message in the corner of the page: what is wrong, and what to do; the log gets the rest.

    It is a warning to gradio, whose errors would cover what the visitor was working with.
    """
    if not isinstance(error, PageError):
        log.error("a request failed", exc_info=error)
        name = type(error).__name__
        error = PageError(f"Something went wrong here ({name}).", "Try again, or reload the page.")
    gr.Warning(str(error), duration=12, title="Please check")
    return error


def told(*otherwise: Any) -> Callable[[Handler], Handler]:
    """Handlers whose errors are told; then their outputs are ``otherwise``."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def shielded(*arguments: Any, **named: Any) -> Any:
            try:
                return handler(*arguments, **named)
            except Exception as error:
                tell(error)
                # Copies, since gradio takes updates apart.
                values = tuple(copy(value) for value in otherwise)
                return values if len(values) > 1 else values[0]

        return shielded

    return decorate


def show_on_phones(element: str) -> str:
    """JavaScript that scrolls to where it happens, if that is below the button."""
    return (
        "(...values) => { if (window.innerWidth < 700) document.getElementById('"
        + element
        + "').scrollIntoView({behavior: 'smooth'}); return values; }"
    )


def action_buttons(name: str) -> tuple[Any, Any]:
    """Start and stop; they stay in sight when the page is scrolled."""
    with gr.Row(elem_classes="actions"):
        start = gr.Button(
            "Start", variant="primary", scale=3, min_width=120, elem_id=f"{name}-start"
        )
        stop = gr.Button(
            "Stop", variant="stop", scale=1, min_width=80, interactive=False, elem_id=f"{name}-stop"
        )
    return start, stop


class Panel:
    """Status, picture, plot, numbers, maps and downloads."""

    def __init__(self, name: str, visitors: Visitors) -> None:
        self.visitors, self.name = visitors, name
        self.status = gr.HTML(views.banner(views.READY), padding=False, elem_id=f"{name}-status")
        with gr.Row():
            with gr.Column(min_width=260):
                self.picture = gr.HTML(padding=False, elem_id=f"{name}-picture")
                self.slider = gr.ImageSlider(
                    visible=False,
                    label="Before and after",
                    elem_id=f"{name}-slider",
                    interactive=False,
                    buttons=["fullscreen"],
                    type="filepath",
                )
            with gr.Column(min_width=260):
                self.plot = gr.HTML(views.live_plot(()), padding=False, elem_id=f"{name}-plot")
        self.numbers = gr.HTML(visible=False, padding=False, elem_id=f"{name}-numbers")
        self.sinogram = gr.HTML(visible=False, padding=False, elem_id=f"{name}-sinogram")
        self.maps = gr.HTML(visible=False, padding=False, elem_id=f"{name}-maps")
        with gr.Row(visible=False) as self.downloads:
            self.image = self._download("Image (PNG)", "image")
            self.json = self._download("Numbers (JSON)", "json")
            self.script = self._download("Script (Python)", "script")
            self.everything = self._download("Everything (ZIP)", "zip")
        self.start: Any = None
        self.stop: Any = None
        self.shown = [
            *(self.picture, self.slider, self.status, self.plot, self.numbers, self.sinogram),
            *(self.maps, self.downloads),
        ]
        """What changes with the picture that is chosen."""

    def showing(self, picture: str) -> tuple[Any, ...]:
        """Updates of ``shown``: a picture in its place, and the result of another one gone."""
        gone = gr.update(visible=False)
        return (
            *(gr.update(value=picture, visible=True), gone, views.banner(views.READY)),
            *(views.live_plot(()), *(copy(gone) for _ in range(4))),
        )

    def buttons(self) -> None:
        """Start and stop, wherever the tab wants them."""
        self.start, self.stop = action_buttons(self.name)

    def connect(self, inputs: list[Any], make_job: Callable[..., Job]) -> None:
        """Start and stop do what they say; ``make_job(session, *values)`` states what is asked."""

        def begin(request: gr.Request, *values: Any) -> Iterator[Updates]:
            yield from self.stream(request, lambda session: make_job(session, *values))

        def end(request: gr.Request) -> None:
            self.visitors.session(request).stop()

        outputs = [
            *(self.status, self.picture, self.slider, self.plot, self.numbers, self.sinogram),
            *(self.maps, self.downloads, self.image, self.json, self.script, self.everything),
            *(self.start, self.stop),
        ]
        limits = self.visitors.limits
        self.start.click(
            begin,
            inputs,
            outputs,
            concurrency_id=RUNS,
            concurrency_limit=limits.runs,
            show_progress="minimal",
            show_progress_on=self.status,
            api_visibility="private",
            js=show_on_phones(f"{self.name}-status"),
        )
        self.stop.click(end, None, None, queue=False, api_visibility="private")

    def stream(self, request: gr.Request, make_job: Callable[[Session], Job]) -> Iterator[Updates]:
        """Everything from the press of the button to the last picture."""
        try:
            session = self.visitors.session(request)
            if not self.visitors.keeps_up(request):
                raise PageError("The page does not read its messages.", "Reload it.")
            job = make_job(session)
            visitors = self.visitors
            run = Run(job, visitors.limits.seconds, visitors.device, visitors.slots)
            session.start(run)
            yield self._cleared()
            yield from self._watch(run, request)
            assert run.outcome is not None
            yield self._result(session, run.outcome)
        except Exception as error:
            said = tell(error)
            yield {self.status: views.banner(said.sentence, "bad", said.hint)}
        yield {self.start: gr.update(interactive=True), self.stop: gr.update(interactive=False)}

    def _watch(self, run: Run, request: gr.Request) -> Iterator[Updates]:
        drawn = 0.0
        for snapshot in run.snapshots():
            if not self.visitors.keeps_up(request):
                continue
            updates: Updates = {self.status: views.progress(snapshot.points, run.job.tolerance)}
            picture = views.live_picture(snapshot, run.job)
            if picture is not None:
                updates[self.picture] = picture
            if snapshot.points and time.monotonic() - drawn > 0.2:
                updates[self.plot] = views.live_plot(snapshot.points)
                drawn = time.monotonic()
            if isinstance(run.job, CTJob) and snapshot.stated is not None and snapshot.x is None:
                counts = snapshot.stated.measurement.fidelity.y
                updates[self.sinogram] = gr.update(value=views.sinogram(counts), visible=True)
            yield updates

    def _cleared(self) -> Updates:
        return {
            self.status: views.banner("Running", "busy", "stating the problem"),
            self.picture: gr.update(visible=True),
            self.slider: gr.update(visible=False, value=None),
            self.plot: views.live_plot(()),
            self.numbers: gr.update(visible=False),
            self.sinogram: gr.update(visible=False),
            self.maps: gr.update(visible=False),
            self.downloads: gr.update(visible=False),
            self.start: gr.update(interactive=False),
            self.stop: gr.update(interactive=True),
        }

    def _result(self, session: Session, outcome: Outcome) -> Updates:
        if session.job is outcome.job:
            session.bound = outcome.lower_bound
        facts = record(outcome)
        files = write_files(outcome, facts, session.new_folder())
        return {
            self.status: views.verdict(outcome),
            self.picture: gr.update(visible=False),
            self.slider: gr.update(value=(str(files.before), str(files.after)), visible=True),
            self.plot: views.live_plot(outcome.points),
            self.numbers: gr.update(value=views.numbers(facts), visible=True),
            self.maps: gr.update(value=views.maps(outcome), visible=True),
            self.downloads: gr.update(visible=True),
            self.image: gr.update(value=str(files.image)),
            self.json: gr.update(value=str(files.numbers)),
            self.script: gr.update(value=str(files.script)),
            self.everything: gr.update(value=str(files.everything)),
        }

    def _download(self, label: str, kind: str) -> Any:
        return gr.DownloadButton(label, size="sm", elem_id=f"{self.name}-{kind}", min_width=120)
