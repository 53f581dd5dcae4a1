"""The tabs for photographs: denoise, and inpaint with a brush."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gradio as gr

from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.web import views
from convexlift.web.choices import (
    FIRST_EXAMPLE,
    REAL,
    SIMULATE,
    UPLOAD,
    accuracy_controls,
    example_choices,
    example_picture,
    more_controls,
    picture_of,
    regularizer_choices,
    take_upload,
)
from convexlift.web.editor import drawn_mask, layers_of, mask_editor
from convexlift.web.inputs import file_input
from convexlift.web.jobs import DenoisingJob, InpaintingJob
from convexlift.web.limits import MEGABYTE, PageError
from convexlift.web.panel import SAME, SHOWN, Panel, Visitors, told
from convexlift.web.pictures import grey_or_colour, png
from convexlift.web.places import SMALL
from convexlift.web.sessions import Session
from convexlift.web.uploads import PICTURES, Picture, read_upload

GAUSSIAN, IMPULSES, FIND_OUT = "gaussian", "salt-and-pepper", "find out"
RANDOM, BRUSH, FILE = "random", "brush", "file"
LEVELS = {GAUSSIAN: (0.01, 0.5, 0.1), IMPULSES: (0.01, 0.8, 0.25)}
QUIET: dict[str, Any] = {
    "show_progress": "hidden", "api_visibility": "private", "concurrency_id": SMALL,
}  # fmt: skip
"""What may fail goes through the queue, too: only from there do errors reach the page."""


class PhotoTab(ABC):
    """What both have: a picture, an upload, a regularizer, and a run."""

    name = ""
    first_task = ""

    def __init__(self, visitors: Visitors) -> None:
        self.visitors = visitors
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                self._left()
            with gr.Column(scale=5, min_width=320):
                self.panel = Panel(self.name, visitors)
                self.panel.picture.value = views.chosen(example_picture(FIRST_EXAMPLE))
        with self.column:
            self.panel.buttons()
        self._events()

    def _left(self) -> None:
        limits = self.visitors.limits
        with gr.Column() as self.column:
            self.choice = gr.Dropdown(
                example_choices(), value=FIRST_EXAMPLE, label="Picture", filterable=False,
                elem_id=f"{self.name}-choice",
            )  # fmt: skip
            self.file = file_input(
                label=f"or your own, up to {limits.upload_bytes / MEGABYTE:g} MB",
                file_types=list(PICTURES), elem_id=f"{self.name}-file", elem_classes="drop",
            )  # fmt: skip
            self._damage()
            self.regularizer, self.tolerance = accuracy_controls(self.first_task, (256, 256))
            with gr.Accordion("More", open=False):
                self.strength, self.seed = more_controls()
                self.colours = gr.Checkbox(
                    True, label="Keep colours of uploads", info="three planes, three times the work"
                )

    @abstractmethod
    def _damage(self) -> None:
        """The controls that say what is wrong with the picture."""

    def _events(self) -> None:
        self.uploaded = self.file.upload(
            self._uploaded, [self.file, self.colours], [self.choice, self.file], **QUIET,
        )  # fmt: skip

    @told(SAME, None)
    def _uploaded(self, path: str | None, colours: bool, request: gr.Request) -> Any:
        limits = self.visitors.limits
        taken = take_upload(
            self.visitors, request, path, lambda p: read_upload(p, limits, colours=colours)
        )
        if taken is None:
            return gr.skip(), None
        session, picture = taken
        session.uploads[self.name] = picture
        return gr.update(choices=example_choices(uploaded=True), value=UPLOAD), None

    def _picture(self, request: gr.Request, choice: str) -> tuple[Session, Picture]:
        session = self.visitors.session(request)
        return session, picture_of(session, self.name, choice)

    def _shown(self, picture: Picture) -> tuple[Any, ...]:
        return self.panel.showing(views.chosen(picture))


class DenoiseTab(PhotoTab):
    """Noise on every pixel."""

    name = "denoise"
    first_task = GaussianDenoising.name

    def _damage(self) -> None:
        self.mode = gr.Radio(
            [("Add noise", SIMULATE), ("Noisy already", REAL)],
            value=SIMULATE, label="Damage", elem_id="denoise-mode",
        )  # fmt: skip
        self.kind = gr.Radio(
            [("Gaussian", GAUSSIAN), ("Salt & pepper", IMPULSES)], value=GAUSSIAN, label="Noise",
            elem_id="denoise-kind",
        )  # fmt: skip
        low, high, value = LEVELS[GAUSSIAN]
        self.level = gr.Slider(
            low, high, value=value, step=0.01, label="Level",
            info="of 1, which is white", elem_id="denoise-level",
        )  # fmt: skip

    def _events(self) -> None:
        super()._events()
        self.mode.change(self._mode, [self.mode], [self.kind, self.level], queue=False, **QUIET)
        self.kind.change(
            self._kind, [self.kind, self.choice], [self.level, self.regularizer], **QUIET,
        )  # fmt: skip
        # A second upload leaves the choice as it is, and is another picture all the same.
        for event in (self.choice.change, self.uploaded.then):
            event(
                self._chosen, [self.choice, self.kind],
                [*self.panel.shown, self.regularizer], **QUIET,
            )  # fmt: skip
        self.panel.connect(
            [
                *(self.choice, self.mode, self.kind, self.level, self.regularizer),
                *(self.tolerance, self.strength, self.seed),
            ],
            self._job,
        )

    def _mode(self, mode: str) -> tuple[Any, Any]:
        kinds = [("Gaussian", GAUSSIAN), ("Salt & pepper", IMPULSES)]
        if mode == SIMULATE:
            return gr.update(choices=kinds, value=GAUSSIAN), gr.update(visible=True)
        return (
            gr.update(choices=[("Find out", FIND_OUT), *kinds], value=FIND_OUT),
            gr.update(visible=False),
        )

    @told(SAME, SAME)
    def _kind(self, kind: str, choice: str, request: gr.Request) -> tuple[Any, Any]:
        _, picture = self._picture(request, choice)
        choices = regularizer_choices(_task_of(kind), picture.size)
        update = gr.update(choices=choices, value=choices[0][1])
        if kind == FIND_OUT:
            return gr.update(visible=False), update
        low, high, value = LEVELS[kind]
        info = "of 1, which is white" if kind == GAUSSIAN else "part of the pixels"
        return gr.update(minimum=low, maximum=high, value=value, info=info, visible=True), update

    @told(*SHOWN, SAME)
    def _chosen(self, choice: str, kind: str, request: gr.Request) -> tuple[Any, ...]:
        _, picture = self._picture(request, choice)
        choices = regularizer_choices(_task_of(kind), picture.size)
        return *self._shown(picture), gr.update(choices=choices, value=choices[0][1])

    def _job(
        self, session: Session, choice: str, mode: str, kind: str, level: float,
        regularizer: str, tolerance: float, strength: float, seed: int,
    ) -> DenoisingJob:  # fmt: skip
        unknown = kind == FIND_OUT
        return DenoisingJob(
            picture=picture_of(session, self.name, choice), regularizer=regularizer,
            simulated=mode == SIMULATE, tolerance=tolerance, strength=strength, seed=seed,
            kind=None if unknown else kind, level=None if unknown else level,  # type: ignore[arg-type]
        )  # fmt: skip


class InpaintTab(PhotoTab):
    """Missing pixels: random ones, those under the brush, or those of a mask."""

    name = "inpaint"
    first_task = Inpainting.name

    def _damage(self) -> None:
        self.mode = gr.Radio(
            [("Remove pixels", SIMULATE), ("Damaged already", REAL)],
            value=SIMULATE, label="Damage", elem_id="inpaint-mode",
        )  # fmt: skip
        self.mask = gr.Radio(
            [("Random", RANDOM), ("Brush", BRUSH), ("File", FILE)],
            value=RANDOM, label="Missing pixels", elem_id="inpaint-mask",
        )  # fmt: skip
        self.missing = gr.Slider(0.05, 0.95, value=0.3, step=0.05, label="Part that is missing")
        self.editor = mask_editor(
            label="Paint what is missing", visible=False,
            elem_id="inpaint-editor", height=420,
        )  # fmt: skip
        self.mask_file = file_input(
            label="Mask: white is seen, black is missing", file_types=list(PICTURES),
            visible=False, elem_id="inpaint-mask-file",
            elem_classes="drop",
        )  # fmt: skip
        self.mask_note = gr.HTML(visible=False)
        self.level = gr.Slider(
            0.0, 0.2, value=0.03, step=0.01, label="Noise on the others",
            info="of 1, which is white", elem_id="inpaint-level",
        )  # fmt: skip

    def _events(self) -> None:
        super()._events()
        shown = [self.missing, self.editor, self.mask_file, self.mask_note]
        self.mask.change(self._mask, [self.mask, self.choice], shown, **QUIET)
        self.mode.change(self._mode, [self.mode], [self.mask, self.level], queue=False, **QUIET)
        # A second upload leaves the choice as it is, and is another picture all the same.
        for event in (self.choice.change, self.uploaded.then):
            event(
                self._chosen, [self.choice, self.mask],
                [*self.panel.shown, self.regularizer, self.editor], **QUIET,
            )  # fmt: skip
        self.mask_file.upload(
            self._mask_uploaded, [self.mask_file], [self.mask_note, self.mask_file], **QUIET
        )
        self.panel.connect(
            [
                *(self.choice, self.mode, self.mask, self.missing, self.editor, self.level),
                *(self.regularizer, self.tolerance, self.strength, self.seed),
            ],
            self._job,
        )

    def _mode(self, mode: str) -> tuple[Any, Any]:
        all_masks = [("Brush", BRUSH), ("File", FILE)]
        if mode == SIMULATE:
            choices = [("Random", RANDOM), *all_masks]
            return gr.update(choices=choices, value=RANDOM), gr.update(visible=True)
        return gr.update(choices=all_masks, value=BRUSH), gr.update(visible=False)

    @told(SAME, SAME, SAME, SAME)
    def _mask(self, mask: str, choice: str, request: gr.Request) -> tuple[Any, Any, Any, Any]:
        session, picture = self._picture(request, choice)
        return (
            gr.update(visible=mask == RANDOM),
            self._editor(session, picture, mask),
            gr.update(visible=mask == FILE),
            gr.update(visible=mask == FILE, value=_mask_text(session)),
        )

    def _editor(self, session: Session, picture: Picture, mask: str) -> Any:
        if mask != BRUSH:
            return gr.update(visible=False, value=None)
        place = session.new_canvas()
        place.write_bytes(png(grey_or_colour(picture.values)))
        value: dict[str, Any] = {"background": str(place), "layers": [], "composite": None}
        return gr.update(visible=True, value=value)

    @told(*SHOWN, SAME, SAME)
    def _chosen(self, choice: str, mask: str, request: gr.Request) -> tuple[Any, ...]:
        session, picture = self._picture(request, choice)
        choices = regularizer_choices(Inpainting.name, picture.size)
        return (
            *self._shown(picture),
            gr.update(choices=choices, value=choices[0][1]),
            self._editor(session, picture, mask),
        )

    @told(SAME, None)
    def _mask_uploaded(self, path: str | None, request: gr.Request) -> Any:
        limits = self.visitors.limits
        taken = take_upload(
            self.visitors, request, path, lambda p: read_upload(p, limits, colours=False)
        )
        if taken is None:
            return gr.skip(), None
        session, picture = taken
        session.uploads["mask"] = picture
        return gr.update(value=_mask_text(session), visible=True), None

    def _job(
        self, session: Session, choice: str, mode: str, mask: str, missing: float,
        drawing: Any, level: float, regularizer: str, tolerance: float,
        strength: float, seed: int,
    ) -> InpaintingJob:  # fmt: skip
        picture = picture_of(session, self.name, choice)
        seen = None
        if mask == BRUSH:
            seen = drawn_mask(layers_of(drawing, session, self.visitors.limits), picture.size)
        elif mask == FILE:
            if "mask" not in session.uploads:
                raise PageError("There is no mask.", "Upload a picture: white seen, black missing.")
            seen = (session.uploads["mask"].values[0, 0] >= 0.5).float()
        return InpaintingJob(
            picture=picture, regularizer=regularizer, simulated=mode == SIMULATE,
            tolerance=tolerance, strength=strength, seed=seed, missing=missing, mask=seen,
            level=level if mode == SIMULATE else None,
        )  # fmt: skip


def _task_of(kind: str) -> str:
    return SaltAndPepper.name if kind == IMPULSES else GaussianDenoising.name


def _mask_text(session: Session) -> str:
    picture = session.uploads.get("mask")
    if picture is None:
        return '<p class="hint">No mask yet.</p>'
    missing = float((picture.values < 0.5).double().mean())
    height, width = picture.size
    return f'<p class="hint">{picture.name}, {width} x {height}: {missing:.0%} missing</p>'
