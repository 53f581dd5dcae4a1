"""The page: a headline, three tabs that reconstruct, one that races, one that explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from starlette.concurrency import run_in_threadpool

import convexlift
from convexlift.web.ct_tab import CTTab
from convexlift.web.limits import MEGABYTE, Limits
from convexlift.web.panel import Visitors
from convexlift.web.photo_tabs import DenoiseTab, InpaintTab
from convexlift.web.places import Places
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
after {idle:.0f} minutes without use. A cookie tells you from others, until you close the browser.
Nothing is sent to any other server.

**Limits.** {upload:g} MB and {pixels:,} pixels for a picture, {seconds:g} s for a run, {runs} runs
at the same time. For more there is the command line, `convexlift reconstruct`, on your own machine.

**Regularizers** have cards: `convexlift models NAME`. Those trained on photographs are for
non-commercial research. This is convexlift {version}.
"""


class PagePolicy:
    """The rules of the page, for the guard: whose files are where, and who may queue."""

    def __init__(self, blocks: Any, sessions: Sessions) -> None:
        self.places = Places(blocks, sessions.limits)
        self.sessions, self.queue = sessions, blocks._queue

    def folder_of(self, visitor: str) -> Path:
        """Where all files of a visitor are."""
        return self.sessions.folder_of(visitor)

    def arrived(self, key: str) -> None:
        """A page is open."""
        self.sessions.arrived(key)

    async def departed(self, key: str) -> None:
        """A page was closed: its session ends with the last connection to it."""
        if self.sessions.departed(key):
            await self.queue.clean_events(session_hash=key)  # nobody waits for them any more
            await run_in_threadpool(self.sessions.close, key)

    def require_place(self, event: object, visitor: str) -> None:
        """Refuse an event for which the queue has no place."""
        self.places.require(event, visitor)

    def discard(self, visitor: str, paths: Iterable[str]) -> None:
        """Delete uploads whose event was refused."""
        pending = self.sessions.pending
        pending.drop(*(path for path in map(Path, paths) if pending.holds(visitor, path)))


def build(
    sessions: Sessions,
    limits: Limits,
    device: torch.device,
    freed: Callable[[], None] = lambda: None,
) -> Any:
    """The Blocks; sessions are closed with the browser tabs they belong to.

    Args:
        sessions: of the visitors.
        limits: of uploads, runs and visitors.
        device: where to compute.
        freed: called when memory was freed, at the end of a run or a session.
    """
    visitors = Visitors(sessions, limits, device, freed)
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
    # Gradio counts all events together: its own bound would let waiting runs turn uploads away.
    # The guard bounds each group of events (Places).
    blocks.queue(max_size=None, default_concurrency_limit=4 * limits.runs, api_open=False)
    blocks.state_session_capacity = 2 * limits.sessions

    def forget(key: str) -> None:
        """Gradio would keep the components of a session, and messages that nobody read."""
        blocks.state_holder.session_data.pop(key, None)
        blocks.state_holder.time_last_used.pop(key, None)
        blocks._queue.pending_messages_per_session.pop(key, None)
        blocks._queue.pending_event_ids_session.pop(key, None)
        freed()

    def unread(key: str) -> int:
        messages = blocks._queue.pending_messages_per_session.get(key)
        return 0 if messages is None else messages.qsize()

    sessions.on_close, visitors.unread = forget, unread
    return blocks
