"""The page: a headline, three tabs with runs, a race, and an explanation."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import gradio as gr
import torch

import convexlift
from convexlift.web.components import Site
from convexlift.web.html import TEMPLATES
from convexlift.web.inpaint_tab import InpaintTab
from convexlift.web.race_tab import RaceTab
from convexlift.web.requests import Queue
from convexlift.web.tabs import CTTab, DenoiseTab
from convexlift.web.visitors import Sessions

HEADLINE = """<div class="headline"><h1>convexlift</h1>
<p>Reconstruct an image with a learned convex regularizer, and see a proof of how close it is to the
best one.</p></div>"""


def build(
    sessions: Sessions, executor: Executor, device: torch.device, tidy: Callable[[], None]
) -> tuple[Any, Queue]:
    """Gradio's page, and its queue.

    Args:
        sessions: of the visitors; those that end are forgotten by Gradio, too.
        executor: its threads compute the runs.
        device: of the tensors.
        tidy: called when memory was freed, at the end of a run or a session.
    """
    limits = sessions.limits
    with gr.Blocks(
        title="convexlift",
        analytics_enabled=False,
        delete_cache=(60, int(limits.idle_seconds)),
        fill_width=True,
    ) as blocks:
        queue = Queue(blocks, limits)
        site = Site(sessions, queue, executor, device, tidy)
        gr.HTML(HEADLINE, padding=False)
        with gr.Tabs():
            with gr.Tab("Denoise", id="denoise"):
                DenoiseTab(site)
            with gr.Tab("Inpaint", id="inpaint"):
                InpaintTab(site)
            with gr.Tab("CT", id="ct"):
                CTTab(site)
            with gr.Tab("Race", id="race") as tab:
                RaceTab(site, tab)
            with gr.Tab("About", id="about"):
                about = TEMPLATES.get_template("about.md")
                gr.Markdown(about.render(limits=limits, version=convexlift.__version__))
    # Gradio counts all events together: its own bound would let waiting runs turn uploads away.
    # The request filter bounds each group of events (Queue.require_place).
    blocks.queue(max_size=None, default_concurrency_limit=4 * limits.runs, api_open=False)
    blocks.state_session_capacity = 2 * limits.sessions

    def forget(key: str) -> None:
        queue.forget(key)
        tidy()

    sessions.on_close = forget
    return blocks, queue


def appearance() -> dict[str, Any]:
    """Theme, style sheet and icon, as options of Gradio; nothing is fetched from other servers."""
    themes = gr.themes
    theme = themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="sm",
        spacing_size="sm",
        font=[themes.Font(name) for name in ("system-ui", "sans-serif")],
        font_mono=[themes.Font(name) for name in ("ui-monospace", "monospace")],
    ).set(  # small grey letters, dark enough to be read
        body_text_color_subdued="*neutral_500", body_text_color_subdued_dark="*neutral_400"
    )
    icon = base64.b64encode(TEMPLATES.get_template("icon.svg").render().encode()).decode()
    return {
        "theme": theme,
        "css": TEMPLATES.get_template("style.css").render(),
        "head": f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">'
        '<meta name="color-scheme" content="light dark">',
    }
