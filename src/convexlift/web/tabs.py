"""The tabs with one run: a common part, denoising, and CT."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
from torch.nn.functional import adaptive_avg_pool2d

from convexlift.images import example_names, load_example
from convexlift.phantoms import shepp_logan
from convexlift.tasks import GaussianDenoising, SaltAndPepper, SparseViewCT
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
from convexlift.web.limits import MEGABYTE, PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.run import (
    CT_SIZES,
    CT_VIEWS,
    STRENGTHS,
    TOLERANCES,
    TV,
    PageJob,
    fitting,
    shipped,
)
from convexlift.web.uploads import PICTURES, SCANS, read_slice, read_upload
from convexlift.web.visitors import Session

UPLOAD, FIRST_EXAMPLE, PHANTOM = "your upload", "camera", "phantom"
SIMULATE, REAL = "simulate", "real"
GAUSSIAN, IMPULSES, DETECT = "gaussian", "salt-and-pepper", "detect"
KINDS = [("Gaussian", GAUSSIAN), ("Salt & pepper", IMPULSES)]
LEVELS = {GAUSSIAN: (0.01, 0.5, 0.1), IMPULSES: (0.01, 0.8, 0.25)}
"""Lowest, highest and initial noise level."""
OF_WHITE = "as a fraction of white"


class Tab(ABC):
    """A picture, its damage, a regularizer, and a run; photographs unless a tab has others."""

    name: str
    task: str
    labels = ("Picture", "or your own", "Your upload")
    endings: tuple[str, ...] = PICTURES

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
    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        """Options of ``cl.reconstruct`` that only this task has."""

    def _first_picture(self) -> InputPicture:
        """The picture that is shown before any other is chosen."""
        return example_picture(FIRST_EXAMPLE)

    def _examples(self) -> list[tuple[str, str]]:
        """Labels and values of the choices besides the upload."""
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
        examples = self._examples()
        self.choice = gr.Dropdown(
            examples, value=examples[0][1], label=self.labels[0], filterable=False,
            elem_id=f"{self.name}-choice",
        )  # fmt: skip
        self.file = file_input(
            label=f"{self.labels[1]}, up to {megabytes}", file_types=list(self.endings),
            elem_id=f"{self.name}-file",
        )  # fmt: skip
        damage = self._damage()
        choices = regularizer_choices(self.task, first.size)
        self.regularizer = gr.Dropdown(
            choices, value=choices[0][1], label="Regularizer", filterable=False,
            elem_id=f"{self.name}-regularizer",
        )  # fmt: skip
        self.tolerance = gr.Radio(
            [(f"{100 * value:g} %", value) for value in TOLERANCES],
            value=1e-3, label="Stop at a certified gap of",
        )  # fmt: skip
        with gr.Accordion("More", open=False):
            self.strength = gr.Slider(
                *STRENGTHS, value=1.0, step=0.1, label="Strength",
                info="1 suits the noise; above 1 smoother, below 1 sharper",
            )  # fmt: skip
            self.seed = gr.Number(
                value=0, precision=0, minimum=0, label="Seed of the simulated damage"
            )
            self.reading = self._more()
        self.inputs = damage | {
            self.choice, self.regularizer, self.tolerance, self.strength, self.seed
        }  # fmt: skip

    def _connect(self) -> None:
        self.uploaded = self.file.upload(
            self._uploaded, {self.file, *self.reading}, [self.choice, self.file], **QUIET
        )
        display = self.display
        self.controls.connect(
            self.inputs, [*display.shown, *display.files.values()], display.status, self._stream
        )

    def _connect_choice(self, inputs: set[Any], outputs: list[Any], *triggers: Any) -> None:
        # A second upload does not change the choice, and yet it is another picture.
        for event in (self.choice.change, self.uploaded.then, *triggers):
            event(self._chosen, {self.choice, *inputs}, [*self.display.shown, *outputs], **QUIET)

    def _uploaded(self, values: Updates, request: gr.Request) -> Updates:
        if not self._received(self.name, self.file, values, request):
            return {self.file: None}
        choices = [(self.labels[2], UPLOAD), *self._examples()]
        return {self.choice: gr.update(choices=choices, value=UPLOAD), self.file: None}

    def _received(self, name: str, file: Any, values: Updates, request: gr.Request) -> bool:
        """Decode an upload, keep the picture under a name, and delete the file; errors are told."""
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
        session = self.site.session(request)
        picture = self._picture(session, values)
        return {**self.display.chosen(picture), **self._changes(session, picture, values)}

    def _changes(self, session: Session, picture: InputPicture, values: Updates) -> Updates:
        """Updates of other inputs when another picture is chosen."""
        return {}

    def _picture(self, session: Session, values: Updates) -> InputPicture:
        if values[self.choice] != UPLOAD:
            return self._example(values)
        if self.name not in session.pictures:
            raise PageError("Your upload has been deleted.", "Send the file again.")
        return session.pictures[self.name]

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

    def _regularizers(self, task: str, picture: InputPicture) -> Updates:
        choices = regularizer_choices(task, picture.size)
        return {self.regularizer: gr.update(choices=choices, value=choices[0][1])}


class DenoiseTab(Tab):
    """Noise on every pixel."""

    name, task = "denoise", GaussianDenoising.name

    def _damage(self) -> set[Any]:
        self.mode = gr.Radio(
            [("Add noise", SIMULATE), ("Already noisy", REAL)],
            value=SIMULATE, label="Damage", elem_id="denoise-mode",
        )  # fmt: skip
        self.kind = gr.Radio(KINDS, value=GAUSSIAN, label="Noise", elem_id="denoise-kind")
        low, high, value = LEVELS[GAUSSIAN]
        self.level = gr.Slider(
            low, high, value=value, step=0.01, label="Level", info=OF_WHITE,
            elem_id="denoise-level",
        )  # fmt: skip
        return {self.mode, self.kind, self.level}

    def _connect(self) -> None:
        super()._connect()
        self._connect_choice({self.kind}, [self.regularizer])
        self.mode.change(self._mode, self.mode, [self.kind, self.level], queue=False, **QUIET)
        self.kind.change(
            self._kind, {self.kind, self.choice}, [self.level, self.regularizer], **QUIET
        )

    def _mode(self, mode: str) -> Updates:
        simulated = mode == SIMULATE
        choices = KINDS if simulated else [("Detect", DETECT), *KINDS]
        return {
            self.kind: gr.update(choices=choices, value=choices[0][1]),
            self.level: gr.update(visible=simulated),
        }

    @tells_errors
    def _kind(self, values: Updates, request: gr.Request) -> Updates:
        session, kind = self.site.session(request), values[self.kind]
        changes = self._changes(session, self._picture(session, values), values)
        if kind == DETECT:
            return {self.level: gr.update(visible=False), **changes}
        low, high, value = LEVELS[kind]
        info = OF_WHITE if kind == GAUSSIAN else "fraction of the pixels"
        level = gr.update(minimum=low, maximum=high, value=value, info=info, visible=True)
        return {self.level: level, **changes}

    def _changes(self, session: Session, picture: InputPicture, values: Updates) -> Updates:
        impulses = values[self.kind] == IMPULSES
        return self._regularizers(SaltAndPepper.name if impulses else self.task, picture)

    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        known = values[self.kind] != DETECT
        return {
            "simulate": values[self.mode] == SIMULATE,
            "noise": values[self.kind] if known else None,
            "sigma": values[self.level] if known else None,
        }


class CTTab(Tab):
    """A simulated scan of a phantom or a slice."""

    name, task, endings = "ct", SparseViewCT.name, SCANS
    labels = ("Object", "or a DICOM slice", "Your slice")

    def _first_picture(self) -> InputPicture:
        return phantom(self._sizes()[:2][-1])

    def _sizes(self) -> list[int]:
        sizes = [size for size in CT_SIZES if size**2 <= self.site.limits.pixels]
        return sizes or [CT_SIZES[0]]

    def _examples(self) -> list[tuple[str, str]]:
        return [("Shepp-Logan phantom", PHANTOM)]

    def _example(self, values: Updates) -> InputPicture:
        return phantom(self._checked_size(values))

    def _read(self, path: Path, values: Updates) -> InputPicture:
        return read_slice(path, self.site.limits)

    def _more(self) -> set[Any]:
        return set()

    def _damage(self) -> set[Any]:
        sizes = self._sizes()
        self.size = gr.Radio(
            [(f"{size} x {size}", size) for size in sizes], value=sizes[:2][-1],
            label="Pixels", elem_id="ct-size",
        )  # fmt: skip
        self.views = gr.Slider(
            *CT_VIEWS, value=120, step=10, label="Views", info="over 180 degrees, 400 rays each"
        )
        return {self.size, self.views}

    def _connect(self) -> None:
        super()._connect()
        self._connect_choice({self.size}, [], self.size.change)

    def _picture(self, session: Session, values: Updates) -> InputPicture:
        picture = super()._picture(session, values)
        side = min(self._checked_size(values), picture.size[0])
        return replace(picture, values=adaptive_avg_pool2d(picture.values, side))

    def _checked_size(self, values: Updates) -> int:
        size = values[self.size]
        if size not in self._sizes():
            raise PageError(f"The size is {size}.", "Choose one from the list.")
        return int(size)

    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        return {"simulate": True, "views": values[self.views]}


def regularizer_choices(task: str, size: tuple[int, int]) -> list[tuple[str, str]]:
    """Labels, with restrictions of their use, and names of the regularizers that fit."""
    choices = []
    for name in fitting(task, size):
        facts = ["classical, not learned"]
        if name != TV:
            sheet = shipped()[name]
            only = sheet.architecture.get("image_size")
            facts = [f"faces, {only[0]} x {only[1]}"] if only else []
            if sheet.card is not None and "non-commercial" in sheet.card.license:
                facts.append("non-commercial")
        label = "total variation" if name == TV else name
        choices.append((f"{label} ({', '.join(facts)})" if facts else label, name))
    return choices


def example_picture(name: str) -> InputPicture:
    """An example of the package."""
    if name not in example_names():
        raise PageError(f"There is no example {name}.", "Choose one from the list.")
    return InputPicture(load_example(name), name, example=True)


def phantom(size: int) -> InputPicture:
    """The phantom of Shepp and Logan."""
    return InputPicture(shepp_logan(size), "Shepp-Logan phantom", example=True)
