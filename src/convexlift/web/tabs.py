"""The tabs with one run: a common part, and denoising.

A visitor either restores a picture of their own, which is taken for damaged, or tries the method
on a picture that is known to be clean: an example, or an upload that the visitor says is clean.
Only then is damage simulated, and only then are results compared with the picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from convexlift.images import example_names, load_example
from convexlift.tasks import GaussianDenoising, SaltAndPepper
from convexlift.web.components import (
    QUIET,
    Controls,
    RunDisplay,
    Site,
    Updates,
    file_input,
    tell,
    tells_errors,
)
from convexlift.web.html import READY, fragment
from convexlift.web.limits import MEGABYTE, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.run import STRENGTHS, TOLERANCES, TV, PageJob, fitting, shipped
from convexlift.web.uploads import PICTURES, read_upload
from convexlift.web.visitors import Session

OWN, TRY = "own", "try"
"""Restore the visitor's own picture, or try the method on a clean one."""
UPLOAD, FIRST_EXAMPLE = "your upload", "camera"
WHOLE, MIDDLE, ALL = "whole", "middle", "all"
GAUSSIAN, IMPULSES, DETECT = "gaussian", "salt-and-pepper", "detect"
KINDS = [("Gaussian", GAUSSIAN), ("Salt & pepper", IMPULSES)]
LEVELS = {GAUSSIAN: (0.01, 0.5, 0.1), IMPULSES: (0.01, 0.8, 0.25)}
"""Lowest, highest and initial noise level."""
OF_WHITE = "as a fraction of white"


class Tab(ABC):
    """A picture, its damage, a regularizer, and a run; for photographs unless overridden."""

    name: str
    task: str
    endings: tuple[str, ...] = PICTURES
    drop = "Your picture"
    modes = ("Restore my picture", "Try it on a clean picture")
    parts: tuple[tuple[str, str], ...] = (
        ("Whole, scaled down", WHOLE), ("Middle, full size", MIDDLE),
    )  # fmt: skip
    parts_note = "Scaling down averages noise away; the middle keeps it."
    plans: tuple[str, str]
    """The treatment of the visitor's picture, and of a clean one."""
    own_ready = READY
    """What to do when the visitor's picture has come."""
    changing: list[Any]
    """Inputs that depend on the picture and the mode."""

    def __init__(self, site: Site) -> None:
        self.site = site
        first = self._first_picture()
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                self._inputs(first)
                self.controls = Controls(self.name, site)
            with gr.Column(scale=5, min_width=320):
                self.display = RunDisplay(self.name, site, first)
        self._connect()

    @abstractmethod
    def _damage(self) -> set[Any]:
        """Create the inputs that describe the damage."""

    @abstractmethod
    def _changes(self, session: Session, picture: InputPicture | None, values: Updates) -> Updates:
        """Updates of the inputs in ``self.changing`` for another picture or mode."""

    @abstractmethod
    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        """Options of ``cl.reconstruct`` that only this task has."""

    def _first_picture(self) -> InputPicture:
        """The initial picture."""
        return example_picture(FIRST_EXAMPLE)

    def _examples(self) -> list[tuple[str, str]]:
        """Labels and values of the clean pictures of the package."""
        names = sorted(example_names(), key=lambda name: name != FIRST_EXAMPLE)
        return [(name.capitalize(), name) for name in names]

    def _example(self, values: Updates) -> InputPicture:
        return example_picture(values[self.choice])

    def _read(self, path: Path, values: Updates) -> InputPicture:
        """Decode an upload."""
        return read_upload(path, self.site.limits, colours=values.get(self.colours, False))

    def _more(self) -> set[Any]:
        """Create further inputs on which the decoding of an upload depends."""
        self.colours = gr.Checkbox(
            True, label="Keep the colours of uploads", info="about three times the work"
        )
        return {self.colours}

    def _inputs(self, first: InputPicture) -> None:
        megabytes = f"{self.site.limits.upload_bytes / MEGABYTE:g} MB"
        self.file = file_input(
            self.endings, label=f"{self.drop}, up to {megabytes}", elem_id=f"{self.name}-file"
        )
        self.mode = gr.Radio(
            list(zip(self.modes, (OWN, TRY), strict=True)), value=TRY, show_label=False,
            label="What to do", elem_id=f"{self.name}-mode",
        )  # fmt: skip
        self.plan = gr.HTML(self._plan(TRY), padding=False, elem_id=f"{self.name}-plan")
        self.part = gr.Radio(
            list(self.parts), value=WHOLE, label="It is large: which part to use", visible=False,
            elem_id=f"{self.name}-part", info=self.parts_note,
        )  # fmt: skip
        examples = self._examples()
        self.choice = gr.Dropdown(
            examples, value=examples[0][1], label="Clean picture", filterable=False,
            elem_id=f"{self.name}-choice",
        )  # fmt: skip
        damage = self._damage()
        choices = regularizer_choices(self.task, first.size)
        self.regularizer = gr.Dropdown(
            choices, value=choices[0][1], label="Regularizer", filterable=False,
            info='Companies may use those marked "any use".', elem_id=f"{self.name}-regularizer",
        )  # fmt: skip
        self.tolerance = gr.Radio(
            [(f"{100 * value:g} %", value) for value in TOLERANCES],
            value=1e-3, label="Stop when solved to within",
        )  # fmt: skip
        with gr.Accordion("More", open=False):
            self.strength = gr.Slider(
                *STRENGTHS, value=1.0, step=0.1, label="Strength",
                info="1 suits the noise; higher is smoother, lower is sharper",
            )  # fmt: skip
            self.seed = gr.Number(
                value=0, precision=0, minimum=0, label="Seed of the simulated damage"
            )
            self.reading = self._more()
        self.inputs = self.choices = damage | {
            self.mode, self.part, self.choice, self.regularizer, self.tolerance, self.strength,
            self.seed,
        }  # fmt: skip

    def _plan(self, mode: str) -> str:
        return fragment("hint", self.plans[mode == TRY])

    def _connect(self, *triggers: Any) -> None:
        display = self.display
        shown = [*display.shown, self.plan, self.part, self.choice, *self.changing]
        for event in (self.mode.input, self.part.input, self.choice.input, *triggers):
            event(self._chosen, self.choices, shown, **QUIET)
        # One event, so that a refused upload changes nothing, not even a result on display.
        self.file.upload(
            self._uploaded, {self.file, *self.reading, *self.choices},
            [self.file, self.mode, *shown], **QUIET,
        )  # fmt: skip
        self.controls.connect(
            self.inputs, [*display.shown, *display.files.values()], display.status, self._stream
        )

    @tells_errors
    def _uploaded(self, values: Updates, request: gr.Request) -> Updates:
        if not self._received(self.name, self.file, values, request):
            return {self.file: None}
        # The visitor has not called this picture clean, whatever they said of the one before.
        examples = self._examples()
        choices = [*examples, ("My upload, which is clean", UPLOAD)]
        chosen = {self.mode: OWN, self.part: WHOLE, self.choice: examples[0][1]}
        shown = self._shown({**values, **chosen}, request)
        shown[self.part].update(value=WHOLE)
        shown[self.choice].update(choices=choices, value=examples[0][1])
        return {**shown, self.mode: OWN, self.file: None}

    def _received(self, name: str, file: Any, values: Updates, request: gr.Request) -> bool:
        """Decode an upload, store the picture under a name, delete the file; errors are shown."""
        try:
            session, path = self.site.session(request), Path(values[file] or "")
            uploads = self.site.sessions.uploads
            if not uploads.holds(session.visitor, path):
                raise PageError("The upload did not arrive.", "Send it again.")
            try:
                session.pictures[name] = self._read(path, values)
            finally:
                uploads.drop(session.visitor, path)
        except Exception as error:
            tell(error)
            return False
        return True

    @tells_errors
    def _chosen(self, values: Updates, request: gr.Request) -> Updates:
        return self._shown(values, request)

    def _shown(self, values: Updates, request: gr.Request) -> Updates:
        """Updates for another picture or mode."""
        session, mode = self.site.session(request), values[self.mode]
        picture = self._picture_if_any(session, values)
        upload = None if picture is None or picture.example else session.pictures[self.name]
        return {
            **self.display.chosen(picture, self.own_ready if mode == OWN else READY),
            self.plan: self._plan(mode),
            self.part: gr.update(visible=upload is not None and upload.middle is not None),
            self.choice: gr.update(visible=mode == TRY),
            **self._changes(session, picture, values),
        }

    def _picture(self, session: Session, values: Updates) -> InputPicture:
        """The picture to be restored, or the clean one to be damaged."""
        if values[self.mode] != OWN and values[self.choice] != UPLOAD:
            return self._example(values)
        if self.name not in session.pictures:
            raise PageError("You have not uploaded a picture.", "Drop the file into the box.")
        picture = self._wanted_part(session.pictures[self.name], values)
        return replace(picture, clean=values[self.mode] != OWN)

    def _picture_if_any(self, session: Session, values: Updates) -> InputPicture | None:
        """The picture; None until a visitor who wants to restore their own has sent it."""
        awaited = values[self.mode] == OWN and self.name not in session.pictures
        return None if awaited else self._picture(session, values)

    def _wanted_part(self, picture: InputPicture, values: Updates) -> InputPicture:
        part = values[self.part]
        if part == ALL and picture.whole is not None:
            return picture.whole()
        return picture.middle or picture if part == MIDDLE else picture

    def _stream(self, session: Session, values: Updates, request: gr.Request) -> Iterator[Updates]:
        picture = self._picture(session, values)
        options = {
            **self._options(values, session, picture),
            "regularizer": values[self.regularizer],
            "tolerance": values[self.tolerance],
            "strength": values[self.strength],
            "seed": values[self.seed],
        }
        job = PageJob(self.name, picture, options)
        return self.display.stream(session, job, self.controls, request)

    def _regularizers(self, task: str, picture: InputPicture | None, values: Updates) -> Updates:
        """The regularizers that fit; the chosen one remains if it fits."""
        choices = regularizer_choices(task, (0, 0) if picture is None else picture.size)
        names, chosen = [name for _, name in choices], values[self.regularizer]
        value = chosen if chosen in names else names[0]
        return {self.regularizer: gr.update(choices=choices, value=value)}


class DenoiseTab(Tab):
    """Noise on every pixel."""

    name, task = "denoise", GaussianDenoising.name
    drop = "Your noisy picture"
    parts = (*Tab.parts, ("Whole, full size, in tiles", ALL))
    parts_note = "Scaling down averages noise away; full size keeps it. Tiles take longest."
    plans = (
        "Your picture is restored as it is. There is no clean version to compare it with.",
        "Noise is added and removed again; the result is compared with the clean picture.",
    )

    def _damage(self) -> set[Any]:
        self.kind = gr.Radio(KINDS, value=GAUSSIAN, label="Noise", elem_id="denoise-kind")
        low, high, value = LEVELS[GAUSSIAN]
        self.level = gr.Slider(
            low, high, value=value, step=0.01, label="Level", info=OF_WHITE,
            elem_id="denoise-level",
        )  # fmt: skip
        return {self.kind, self.level}

    def _connect(self, *triggers: Any) -> None:
        self.changing = [self.kind, self.level, self.regularizer]
        super()._connect(*triggers)
        self.kind.input(self._kind, self.inputs, [self.level, self.regularizer], **QUIET)

    def _changes(self, session: Session, picture: InputPicture | None, values: Updates) -> Updates:
        # The noise of a visitor's picture is unknown until they say otherwise.
        own, kind = values[self.mode] == OWN, values[self.kind]
        kinds = [("Detect", DETECT), *KINDS] if own else KINDS
        changed = kind == DETECT or own
        kind = kinds[0][1] if changed else kind
        level = self._level(kind) if changed else {}
        noise = {self.kind: gr.update(choices=kinds, value=kind)}
        return {**noise, **level, **self._regularizers(_task_of(kind), picture, values)}

    @tells_errors
    def _kind(self, values: Updates, request: gr.Request) -> Updates:
        session, kind = self.site.session(request), values[self.kind]
        picture = self._picture_if_any(session, values)
        return {**self._level(kind), **self._regularizers(_task_of(kind), picture, values)}

    def _level(self, kind: str) -> Updates:
        if kind == DETECT:
            return {self.level: gr.update(visible=False)}
        low, high, value = LEVELS[kind]
        info = OF_WHITE if kind == GAUSSIAN else "fraction of the pixels"
        level = gr.update(minimum=low, maximum=high, value=value, info=info, visible=True)
        return {self.level: level}

    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        known = values[self.kind] != DETECT
        return {
            "simulate": values[self.mode] != OWN,
            "noise": values[self.kind] if known else None,
            "sigma": values[self.level] if known else None,
        }


def _task_of(kind: str) -> str:
    return SaltAndPepper.name if kind == IMPULSES else GaussianDenoising.name


def regularizer_choices(task: str, size: tuple[int, int]) -> list[tuple[str, str]]:
    """Labels, with the permitted use, and names of the regularizers that fit."""
    choices = []
    for name in fitting(task, size):
        card = None if name == TV else shipped()[name].card
        label = f"{name} ({permission(card.license)})" if card is not None else name
        choices.append(("total variation (any use)" if name == TV else label, name))
    return choices


def permission(license: str) -> str:
    """The permitted use of a regularizer, from the licence on its card."""
    if "non-commercial" in license or "research only" in license:
        return "research only"
    if "no conditions" in license:
        return "any use"
    return "any use, cite" if license.startswith("CC BY ") else "see its card"


def example_picture(name: str) -> InputPicture:
    """An example of the package."""
    if name not in example_names():
        raise PageError(f"There is no example {name}.", "Choose one from the list.")
    return InputPicture(load_example(name), name, example=True, clean=True)
