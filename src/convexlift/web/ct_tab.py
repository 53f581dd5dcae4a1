"""The tab for tomography: a simulated scan of a phantom or a slice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
from torch.nn.functional import adaptive_avg_pool2d

from convexlift.phantoms import shepp_logan
from convexlift.tasks import SparseViewCT
from convexlift.web.components import Updates
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture
from convexlift.web.run import CT_SIZES, CT_VIEWS
from convexlift.web.tabs import Tab
from convexlift.web.uploads import SCANS, read_slice
from convexlift.web.visitors import Session

PHANTOM = "phantom"


class CTTab(Tab):
    """A simulated scan; the result is compared with its object if that is known to be clean."""

    name, task, endings = "ct", SparseViewCT.name, SCANS
    drop = "Your CT slice (DICOM)"
    modes = ("Scan my slice", "Try it on a clean one")
    plans = (
        "A scan of your slice is simulated and reconstructed. The slice has noise and artefacts of "
        "its own, so nothing is compared with it. For the data of a scanner: convexlift "
        "reconstruct ct, on the command line.",
        "A scan is simulated and reconstructed; the result is compared with the clean object.",
    )

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

    def _connect(self, *triggers: Any) -> None:
        self.changing = []
        super()._connect(self.size.input, *triggers)

    def _changes(self, session: Session, picture: InputPicture | None, values: Updates) -> Updates:
        return {}

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


def phantom(size: int) -> InputPicture:
    """The phantom of Shepp and Logan."""
    return InputPicture(shepp_logan(size), "Shepp-Logan phantom", example=True, clean=True)
