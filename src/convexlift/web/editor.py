"""The brush: gradio's image editor, of which only the drawing comes back, read with limits."""

from __future__ import annotations

from abc import ABCMeta
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from convexlift.web.limits import Limits, PageError
from convexlift.web.uploads import read_layer


def mask_editor(limits: Limits, **options: Any) -> Any:
    """A picture to paint over. Its value is a list of opacities, (H, W) of uint8, for layers."""
    return _editor_class(limits)(
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


def _editor_class(limits: Limits) -> Any:
    """Gradio's editor would decode whatever it is sent; this one reads layers, with limits."""

    def preprocess(self: Any, payload: Any) -> list[Any] | None:
        if payload is None:
            return None
        sent = payload if payload.id is None else self.blob_storage.pop(payload.id, None)
        layers = [] if sent is None else (sent.layers or [])
        try:
            return [read_layer(_content(layer), limits) for layer in layers if layer]
        except PageError as error:
            raise gr.Error(str(error), print_exception=False) from None

    # Gradio makes new objects of the class for each visitor, so the limits are in the class; and
    # its metaclass writes a stub file beside the source of each class, so it is passed by.
    parts = {"is_template": True, "preprocess": preprocess, "__module__": __name__}
    return ABCMeta.__new__(type(gr.ImageEditor), "MaskEditor", (gr.ImageEditor,), parts)


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
