"""The brush: Gradio's image editor, of which only the drawing comes back, read with limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from convexlift.web.inputs import plain_input
from convexlift.web.limits import Limits, PageError
from convexlift.web.payloads import is_own_file
from convexlift.web.sessions import Session
from convexlift.web.uploads import read_layer


def mask_editor(**options: Any) -> Any:
    """A picture to paint over. Its value is a description of the drawing, for ``layers_of``."""
    # Gradio's editor would decode whatever it is sent.
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


def layers_of(drawing: Any, session: Session, limits: Limits) -> list[NDArray[np.uint8]]:
    """The opacities of what a visitor painted: kept in the session, or in files just uploaded."""
    if drawing is None:
        return []
    if drawing.id is not None:
        return list(session.drawings.pop(drawing.id, {}).values())
    layers = [Path(layer.path) for layer in drawing.layers or () if layer]
    own = session.folder.parent
    return [read_layer(path, limits) for path in layers if is_own_file(str(path), own)]


def drawn_mask(layers: list[Any] | None, size: tuple[int, int]) -> Tensor:
    """1 where nothing was painted, (H, W) of the picture, whatever the size of the drawing is."""
    missing = torch.zeros(size, dtype=torch.bool)
    for layer in layers or ():
        opacity = torch.from_numpy(np.array(layer, dtype=np.float32))[None, None]
        missing |= interpolate(opacity, size=size, mode="area")[0, 0] > 64
    if not bool(missing.any()):
        raise PageError("Nothing is painted.", "Paint over the pixels that are to be filled in.")
    return (~missing).to(torch.float32)
