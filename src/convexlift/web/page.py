"""The page: a headline, three tabs that reconstruct, one that races, one that explains."""

from __future__ import annotations

from typing import Any

import gradio as gr
import torch

import convexlift
from convexlift.web.ct_tab import CTTab
from convexlift.web.limits import MEGABYTE, Limits
from convexlift.web.panel import Visitors
from convexlift.web.photo_tabs import DenoiseTab, InpaintTab
from convexlift.web.race_tab import RaceTab
from convexlift.web.sessions import Sessions

HEADLINE = """<div class="headline"><h1>convexlift</h1>
<p>Reconstruct an image with a learned convex regularizer, and see a proof of how close it is to the
best one.</p></div>"""

ABOUT = """
**What is computed.** The image *x* minimises *D(Ax, y) + weight R(x)*: *D* compares with the data,
*R* is a convex neural network (or total variation) that knows what images look like.

**What is proved.** The lower bound is a theorem about this problem: no image whatever has a smaller
objective. A gap of 0.1 % says that yours is within 0.1 % of the best. It does not say that the
image is true: that depends on the data, the model of the damage and the regularizer. *Not for
diagnosis.*

**The maps.** *Error* is the distance from the truth, where it is known. *Certified gap by pixel*
shows where the certificate is not tight yet.

**What happens to your files.** They are decoded in memory and deleted from disk at once. Results
are kept for you alone, in a folder with a random name, and deleted when you close the page, or
after {idle:.0f} minutes without use. Nothing is sent to any other server.

**Limits.** {upload:g} MB and {pixels:,} pixels for a picture, {seconds:g} s for a run, {runs} runs
at the same time. For more there is the command line, `convexlift reconstruct`, on your own machine.

**Regularizers** have cards: `convexlift models NAME`. Those trained on photographs are for
non-commercial research. This is convexlift {version}.
"""


def build(sessions: Sessions, limits: Limits, device: torch.device) -> Any:
    """The Blocks; sessions are closed with the browser tabs they belong to."""
    visitors = Visitors(sessions, limits, device)
    with gr.Blocks(
        title="convexlift",
        analytics_enabled=False,
        delete_cache=(60, int(limits.idle_seconds)),
        fill_width=True,
    ) as blocks:
        gr.HTML(HEADLINE, padding=False)
        with gr.Tabs():
            with gr.Tab("Denoise", id="denoise"):
                DenoiseTab(visitors)
            with gr.Tab("Inpaint", id="inpaint"):
                InpaintTab(visitors)
            with gr.Tab("CT", id="ct"):
                CTTab(visitors)
            with gr.Tab("Race", id="race") as tab:
                RaceTab(visitors).connect(tab)
            with gr.Tab("About", id="about"):
                gr.Markdown(
                    ABOUT.format(
                        idle=limits.idle_seconds / 60,
                        upload=limits.upload_bytes / MEGABYTE,
                        pixels=limits.pixels,
                        seconds=limits.seconds,
                        runs=limits.runs,
                        version=convexlift.__version__,
                    )
                )

        def left(request: gr.Request) -> None:
            sessions.close(str(request.session_hash))

        blocks.unload(left)
    blocks.queue(max_size=limits.waiting, default_concurrency_limit=4 * limits.runs, api_open=False)
    return blocks
