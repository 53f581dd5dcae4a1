"""The CT tab: a phantom or a slice, a simulated scan with few views, and its sinogram."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr
from torch.nn.functional import adaptive_avg_pool2d

from convexlift.phantoms import shepp_logan
from convexlift.scans.hounsfield import LOWEST, RANGE
from convexlift.tasks import SparseViewCT
from convexlift.web import views
from convexlift.web.choices import UPLOAD, accuracy_controls, more_controls, take_upload
from convexlift.web.inputs import file_input
from convexlift.web.jobs import CT_SIZES, CT_VIEWS, CTJob
from convexlift.web.limits import MEGABYTE, PageError
from convexlift.web.panel import SAME, SHOWN, Panel, Visitors, told
from convexlift.web.photo_tabs import QUIET
from convexlift.web.sessions import Session
from convexlift.web.uploads import SCANS, Picture, read_slice

PHANTOM = "phantom"
WINDOW = ((-200 - LOWEST) / RANGE, (300 - LOWEST) / RANGE)
"""Slices are shown from -200 to 300 HU: soft tissue."""


class CTTab:
    """A scan is simulated, and reconstructed."""

    def __init__(self, visitors: Visitors) -> None:
        self.visitors = visitors
        limits = visitors.limits
        with gr.Row():
            with gr.Column(scale=2, min_width=300) as column:
                self.choice = gr.Dropdown(
                    _choices(False), value=PHANTOM, label="Object", filterable=False,
                    elem_id="ct-choice",
                )  # fmt: skip
                self.file = file_input(
                    label=f"or a DICOM slice, up to {limits.upload_bytes / MEGABYTE:g} MB",
                    file_types=list(SCANS), elem_id="ct-file",
                    elem_classes="drop",
                )  # fmt: skip
                sizes = [size for size in CT_SIZES if size**2 <= limits.pixels] or [CT_SIZES[0]]
                self.size = gr.Radio(
                    [(f"{size} x {size}", size) for size in sizes], value=sizes[:2][-1],
                    label="Pixels", elem_id="ct-size",
                )  # fmt: skip
                self.views = gr.Slider(
                    *CT_VIEWS, value=120, step=10, label="Views", info="400 rays each, half a turn"
                )
                size = (int(self.size.value), int(self.size.value))
                self.regularizer, self.tolerance = accuracy_controls(SparseViewCT.name, size)
                with gr.Accordion("More", open=False):
                    self.strength, self.seed = more_controls()
            with gr.Column(scale=5, min_width=320):
                self.panel = Panel("ct", visitors)
                self.panel.picture.value = views.chosen(_phantom(size[0]))
        with column:
            self.panel.buttons()
        self._events()

    def _events(self) -> None:
        uploaded = self.file.upload(self._uploaded, [self.file], [self.choice, self.file], **QUIET)
        for event in (self.choice.change, self.size.change, uploaded.then):
            event(self._chosen, [self.choice, self.size], self.panel.shown, **QUIET)
        self.panel.connect(
            [
                *(self.choice, self.size, self.views, self.regularizer, self.tolerance),
                *(self.strength, self.seed),
            ],
            self._job,
        )

    @told(SAME, None)
    def _uploaded(self, path: str | None, request: gr.Request) -> Any:
        limits = self.visitors.limits
        taken = take_upload(self.visitors, request, path, lambda p: read_slice(p, limits))
        if taken is None:
            return gr.skip(), None
        session, picture = taken
        session.uploads["ct"] = picture
        return gr.update(choices=_choices(True), value=UPLOAD), None

    @told(*SHOWN)
    def _chosen(self, choice: str, size: int, request: gr.Request) -> tuple[Any, ...]:
        picture = _object(self.visitors.session(request), choice, size)
        return self.panel.showing(views.chosen(picture, _window(picture)))

    def _job(
        self, session: Session, choice: str, size: int, count: int, regularizer: str,
        tolerance: float, strength: float, seed: int,
    ) -> CTJob:  # fmt: skip
        picture = _object(session, choice, size)
        return CTJob(
            picture=picture, regularizer=regularizer, tolerance=tolerance, strength=strength,
            seed=seed, views=count, window=_window(picture),
        )  # fmt: skip


def _choices(uploaded: bool) -> list[tuple[str, str]]:
    phantom = [("Shepp-Logan phantom", PHANTOM)]
    return [("Your slice", UPLOAD), *phantom] if uploaded else phantom


def _phantom(size: int) -> Picture:
    return Picture(shepp_logan(size), "Shepp-Logan phantom", example=True)


def _object(session: Session, choice: str, size: int) -> Picture:
    if size not in CT_SIZES:
        raise PageError(f"The size is {size}.", "Choose one of the list.")
    if choice == PHANTOM:
        return _phantom(size)
    if "ct" not in session.uploads:
        raise PageError("Your slice is no longer here.", "Send the file again.")
    slice_ = session.uploads["ct"]
    side = min(size, slice_.size[0])
    return replace(slice_, values=adaptive_avg_pool2d(slice_.values, side))


def _window(picture: Picture) -> tuple[float, float]:
    return (0.0, 1.0) if picture.example else WINDOW
