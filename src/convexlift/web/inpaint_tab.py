"""The tab for inpainting, with a brush."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from convexlift.tasks import Inpainting
from convexlift.web.components import QUIET, Updates, file_input, mask_editor, tells_errors
from convexlift.web.html import fragment
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture, grey_or_colour, png
from convexlift.web.requests import is_own_file
from convexlift.web.tabs import OF_WHITE, OWN, Tab
from convexlift.web.uploads import PICTURES, read_layer, read_upload
from convexlift.web.visitors import Session

RANDOM, BRUSH, FILE = "random", "brush", "file"
MASKS = [("Brush", BRUSH), ("File", FILE)]


class InpaintTab(Tab):
    """Missing pixels: at random, painted with the brush, or from a mask file."""

    name, task = "inpaint", Inpainting.name

    drop = "Your damaged picture"
    plans = (
        "Mark the pixels to fill in; noise is removed from the others. There is no clean version "
        "to compare the result with.",
        "Pixels are removed and filled in again; the result is compared with the clean picture.",
    )

    own_ready = "Mark the missing pixels, then press Start."

    def _damage(self) -> set[Any]:
        self.mask = gr.Radio(
            [("Random", RANDOM), *MASKS], value=RANDOM, label="Missing pixels",
            elem_id="inpaint-mask",
        )  # fmt: skip
        self.missing = gr.Slider(
            0.05, 0.95, value=0.3, step=0.05, label="Missing fraction", elem_id="inpaint-missing"
        )
        self.editor = mask_editor(
            label="Paint the missing pixels", visible=False, elem_id="inpaint-editor", height=420
        )
        self.mask_file = file_input(
            PICTURES, label="Mask: white is known, black is missing", visible=False,
            elem_id="inpaint-mask-file",
        )  # fmt: skip
        self.mask_note = gr.HTML(visible=False)
        self.level = gr.Slider(
            0.0, 0.2, value=0.03, step=0.01, label="Noise on the known pixels", info=OF_WHITE,
            elem_id="inpaint-level",
        )  # fmt: skip
        return {self.mask, self.missing, self.editor, self.level}

    def _connect(self, *triggers: Any) -> None:
        masks = [self.missing, self.editor, self.mask_file, self.mask_note]
        self.changing = [self.mask, self.level, self.regularizer, *masks]
        self.choices = self.inputs - {self.editor}  # the drawing is sent when a run starts
        super()._connect(*triggers)
        self.mask.input(self._mask, self.choices, masks, **QUIET)
        self.mask_file.upload(
            self._mask_uploaded, {self.mask_file}, [self.mask_note, self.mask_file], **QUIET
        )

    def _changes(self, session: Session, picture: InputPicture | None, values: Updates) -> Updates:
        own, mask = values[self.mode] == OWN, values[self.mask]
        mask = BRUSH if own and mask == RANDOM else mask
        choices = MASKS if own else [("Random", RANDOM), *MASKS]
        return {
            self.mask: gr.update(choices=choices, value=mask),
            self.level: gr.update(visible=not own),
            **self._regularizers(self.task, picture, values),
            **self._masks(session, picture, mask),
        }

    @tells_errors
    def _mask(self, values: Updates, request: gr.Request) -> Updates:
        session = self.site.session(request)
        picture = self._picture_if_any(session, values)
        return self._masks(session, picture, values[self.mask])

    def _masks(self, session: Session, picture: InputPicture | None, mask: str) -> Updates:
        return {
            self.missing: gr.update(visible=mask == RANDOM),
            self.editor: self._canvas(session, picture, mask),
            self.mask_file: gr.update(visible=mask == FILE),
            self.mask_note: gr.update(visible=mask == FILE, value=_mask_note(session)),
        }

    def _read(self, path: Path, values: Updates) -> InputPicture:
        if self.mask_file in values:
            return read_upload(path, self.site.limits, colours=False, mask=True)
        return super()._read(path, values)

    def _mask_uploaded(self, values: Updates, request: gr.Request) -> Updates:
        if not self._received("mask", self.mask_file, values, request):
            return {self.mask_file: None}
        note = gr.update(value=_mask_note(self.site.session(request)), visible=True)
        return {self.mask_note: note, self.mask_file: None}

    def _canvas(self, session: Session, picture: InputPicture | None, mask: str) -> Any:
        """The update of the brush: the picture to paint over."""
        if mask != BRUSH or picture is None:
            return gr.update(visible=False, value=None)
        path = session.new_canvas()
        path.write_bytes(png(grey_or_colour(picture.values)))
        value: dict[str, Any] = {"background": str(path), "layers": [], "composite": None}
        return gr.update(visible=True, value=value)

    def _options(self, values: Updates, session: Session, picture: InputPicture) -> dict[str, Any]:
        simulate, mask, seen = values[self.mode] != OWN, values[self.mask], None
        if mask == BRUSH:
            seen = self._painted(values[self.editor], session, picture.size)
        elif mask == FILE:
            if "mask" not in session.pictures:
                raise PageError("There is no mask.", "Upload one: white known, black missing.")
            known = self._wanted_part(session.pictures["mask"], values)
            seen = (known.values[0, 0] >= 0.5).float()
        sigma = values[self.level] if simulate else None
        missing = {"missing": values[self.missing]} if seen is None else {"mask": seen}
        return {"simulate": simulate, "sigma": sigma, **missing}

    def _painted(self, drawing: Any, session: Session, size: tuple[int, int]) -> Tensor:
        """1 where nothing was painted, (H, W) of the picture, whatever the size of the drawing."""
        layers: list[Any] = []
        if drawing is not None and drawing.id is not None:
            layers = list(session.drawings.pop(drawing.id, {}).values())
        elif drawing is not None:
            paths = [layer.path for layer in drawing.layers or () if layer]
            own = [Path(path) for path in paths if is_own_file(path, session.folder.parent)]
            layers = [read_layer(path, self.site.limits) for path in own]
        missing = torch.zeros(size, dtype=torch.bool)
        for layer in layers:
            opacity = torch.from_numpy(np.array(layer, dtype=np.float32))[None, None]
            # A quarter of full opacity, so that the soft edge of a stroke counts as missing.
            missing |= interpolate(opacity, size=size, mode="area")[0, 0] > 64
        if not bool(missing.any()):
            raise PageError("Nothing is painted.", "Paint over the pixels to fill in.")
        return (~missing).to(torch.float32)


def _mask_note(session: Session) -> str:
    picture = session.pictures.get("mask")
    if picture is None:
        return fragment("hint", "No mask yet.")
    missing = float((picture.values < 0.5).double().mean())
    height, width = picture.size
    return fragment("hint", f"{picture.name}, {width} x {height}: {100 * missing:.0f} % missing")
