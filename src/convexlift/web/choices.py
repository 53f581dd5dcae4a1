"""The parts of a tab's left half that tabs share: pictures, regularizers, accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from convexlift.images import example_names, load_example
from convexlift.web.jobs import STRENGTHS, TOLERANCES, TV, fitting, shipped
from convexlift.web.limits import PageError
from convexlift.web.panel import Visitors
from convexlift.web.running import log
from convexlift.web.sessions import Session
from convexlift.web.uploads import Picture, shown_name

UPLOAD = "your upload"
SIMULATE, REAL = "simulate", "real"
FIRST_EXAMPLE = "camera"


def example_picture(name: str) -> Picture:
    """One of those inside the package."""
    if name not in example_names():
        raise PageError(f"There is no example {name}.", "Choose one of the list.")
    return Picture(load_example(name), name, example=True)


def picture_of(session: Session, tab: str, choice: str) -> Picture:
    """What the visitor chose in a tab."""
    if choice != UPLOAD:
        return example_picture(choice)
    if tab not in session.uploads:
        raise PageError("Your upload is no longer here.", "Send the file again.")
    return session.uploads[tab]


def example_choices(uploaded: bool = False) -> list[tuple[str, str]]:
    """For a list; the upload comes first once there is one."""
    examples = [(name.capitalize(), name) for name in example_names()]
    return [("Your upload", UPLOAD), *examples] if uploaded else examples


def regularizer_choices(task: str, size: tuple[int, int]) -> list[tuple[str, str]]:
    """Those that fit, with a few words."""
    names = fitting(task, size)
    return [(_label(name), name) for name in names]


def accuracy_controls(task: str, size: tuple[int, int]) -> tuple[Any, Any]:
    """The regularizer and the tolerance."""
    choices = regularizer_choices(task, size)
    regularizer = gr.Dropdown(choices, value=choices[0][1], label="Regularizer", filterable=False)
    tolerance = gr.Radio(
        [(f"{100 * value:g} %", value) for value in TOLERANCES],
        value=1e-3,
        label="Certified gap at most",
    )
    return regularizer, tolerance


def more_controls() -> tuple[Any, Any]:
    """What few people touch: strength and seed."""
    strength = gr.Slider(
        *STRENGTHS, value=1.0, step=0.1, label="Strength", info="times the recommended weight"
    )
    seed = gr.Number(value=0, precision=0, minimum=0, label="Seed of the simulated damage")
    return strength, seed


def take_upload(
    visitors: Visitors, request: gr.Request, path: str | None, read: Callable[[Path], Picture]
) -> tuple[Session, Picture] | None:
    """Decode a file of the visitor's own and delete it; None if there is no file."""
    if not path:
        return None
    session, place, pending = visitors.session(request), Path(path), visitors.sessions.pending
    if not pending.holds(session.visitor, place):
        raise PageError("The upload did not arrive.", "Send it again.")
    try:
        return session, read(place)
    except PageError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly everything
        log.error("an upload cannot be read", exc_info=error)
        name = shown_name(place)
        raise PageError(
            f"{name} cannot be read.", "Save it again, or upload another file."
        ) from None
    finally:
        pending.drop(place)


def _label(name: str) -> str:
    if name == TV:
        return "total variation (classical, nothing learned)"
    sheet = shipped()[name]
    only = sheet.architecture.get("image_size")
    return f"{name} (faces of {only[0]} x {only[1]})" if only else name
