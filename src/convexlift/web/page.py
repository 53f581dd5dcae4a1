"""The page: a headline, three tabs with runs, and an explanation."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import gradio as gr
import torch

import convexlift
from convexlift.files.formats import EXPORTS
from convexlift.web.components import Site
from convexlift.web.ct_tab import CTTab
from convexlift.web.html import TEMPLATES
from convexlift.web.inpaint_tab import InpaintTab
from convexlift.web.requests import Queue
from convexlift.web.tabs import DenoiseTab
from convexlift.web.visitors import Sessions

HEADLINE = """<div class="headline"><h1>convexlift</h1>
<p>Restore a noisy or damaged picture with a learned convex model, and see a proof of how well that
model is solved.</p></div>"""


def build(
    sessions: Sessions, executor: Executor, device: torch.device, tidy: Callable[[], None]
) -> tuple[Any, Queue]:
    """Gradio's page and its queue; ``tidy`` is called when a run or a session has freed memory."""
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
            with gr.Tab("About", id="about"):
                about = TEMPLATES.get_template("about.md")
                facts = {"limits": limits, "version": convexlift.__version__}
                gr.Markdown(about.render(facts), elem_classes="about")
    # Gradio's own bound counts all events together, so that waiting runs would block uploads. The
    # request filter bounds each group of events instead (Queue.require_place).
    blocks.queue(max_size=None, default_concurrency_limit=4 * limits.runs, api_open=False)
    blocks.state_session_capacity = 2 * limits.sessions

    def forget(key: str) -> None:
        queue.forget(key)
        tidy()

    sessions.is_busy, sessions.on_close = queue.is_busy, forget
    return blocks, queue


def appearance() -> dict[str, Any]:
    """Options of Gradio: theme, style sheet, icon and script; nothing comes from other servers."""
    themes = gr.themes
    theme = themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="sm",
        spacing_size="sm",
        font=[themes.Font(name) for name in ("system-ui", "sans-serif")],
        font_mono=[themes.Font(name) for name in ("ui-monospace", "monospace")],
    ).set(  # enough contrast for small grey letters, and for white ones on buttons
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )
    icon = base64.b64encode(TEMPLATES.get_template("icon.svg").render().encode()).decode()
    return {
        "theme": theme,
        "css": TEMPLATES.get_template("style.css").render(),
        "head": f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">'
        '<meta name="color-scheme" content="light dark">'
        f"<script>{TEMPLATES.get_template('uploads.js').render(refused=list(EXPORTS))}</script>",
    }
