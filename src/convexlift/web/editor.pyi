"""The brush: gradio's image editor, of which only the drawing comes back, read with limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from convexlift.web.limits import Limits, PageError
from convexlift.web.uploads import read_layer

from gradio.events import Dependency

class MaskEditor(gr.ImageEditor):  # type: ignore[misc]
    """A picture to paint over. Its value is a list of opacities, (H, W) of uint8, for layers."""

    is_template = True  # it looks like its parent

    def __init__(self, limits: Limits, **options: Any) -> None:
        # Not an argument of the parent, which is asked for those to describe itself.
        self._limits = limits
        super().__init__(
            sources=(),
            transforms=(),
            layers=False,
            brush=gr.Brush(
                default_size=14, colors=["#d55e00"], default_color="#d55e00", color_mode="fixed"
            ),
            eraser=gr.Eraser(default_size=20),
            buttons=["fullscreen"],
            **options,
        )

    def preprocess(self, payload: Any) -> list[Any] | None:
        """Gradio would decode whatever it is given; here the layers are, and nothing else."""
        if payload is None:
            return None
        blobs = payload
        if payload.id is not None:
            blobs = self.blob_storage.pop(payload.id, None)
        layers = [] if blobs is None else (blobs.layers or [])
        try:
            return [read_layer(_content(layer), self._limits) for layer in layers if layer]
        except PageError as error:
            raise gr.Error(str(error), print_exception=False) from None
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component


def drawn_mask(layers: list[Any] | None, size: tuple[int, int]) -> Tensor:
    """1 where nothing was painted, (H, W) of the picture, whatever the size of the drawing is."""
    missing = torch.zeros(size, dtype=torch.bool)
    for layer in layers or ():
        opacity = torch.from_numpy(np.array(layer, dtype=np.float32))[None, None]
        missing |= interpolate(opacity, size=size, mode="area")[0, 0] > 64
    if not bool(missing.any()):
        raise PageError("Nothing is painted.", "Paint over the pixels that are to be filled in.")
    return (~missing).to(torch.float32)


def _content(layer: Any) -> bytes | Path:
    return bytes(layer) if isinstance(layer, bytes | bytearray | memoryview) else Path(layer.path)