"""Gradio's inputs for files and drawings, without Gradio's own reading of what they are sent."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import gradio as gr


def plain_input(base: Any, value: Callable[[Any], Any], **options: Any) -> Any:
    """A component whose value for handlers is ``value(payload)``, and nothing is done before."""

    def preprocess(self: Any, payload: Any) -> Any:
        return None if payload is None else value(payload)

    # Gradio makes new objects of the class for each visitor, so the function is in the class; and
    # its metaclass writes a stub file beside the source of each class, so it is passed by.
    parts = {"is_template": True, "preprocess": preprocess, "__module__": __name__}
    return ABCMeta.__new__(type(base), f"Plain{base.__name__}", (base,), parts)(**options)


def file_input(**options: Any) -> Any:
    """A place to drop a file; its value is the path.

    Gradio's own leaves an empty file behind for each upload, and goes by the ending of the name.
    """
    return plain_input(gr.File, _path, height=96, **options)


def _path(payload: Any) -> str | None:
    """The path of one file; nothing is uploaded in lists here."""
    path = getattr(payload, "path", None)
    return path if isinstance(path, str) else None
