"""The page: a headline, three tabs with runs, a race of methods, and an explanation."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import gradio as gr
import torch

import convexlift
from convexlift.files.formats import EXPORTS
from convexlift.web import html
from convexlift.web.components import QUIET, Controls, Site, Updates, tells_errors
from convexlift.web.ct_tab import CTTab
from convexlift.web.html import TEMPLATES
from convexlift.web.inpaint_tab import InpaintTab
from convexlift.web.race import NAMES, Race
from convexlift.web.requests import Queue
from convexlift.web.run import FIRST_RUN, PageJob
from convexlift.web.tabs import FIRST_EXAMPLE, DenoiseTab, example_picture
from convexlift.web.visitors import Session, Sessions

HEADLINE = """<div class="headline"><h1>convexlift</h1>
<p>Restore a noisy or damaged picture with a learned convex model, and see a proof of how well that
model is solved.</p></div>"""


class RaceTab:
    """Methods compared on the problem that was solved last."""

    def __init__(self, site: Site, tab: Any) -> None:
        self.site = site
        longest = max(2, int(site.limits.seconds / (2 * len(NAMES))))
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                gr.HTML(html.fragment("race"), padding=False)
                self.problem = gr.HTML(padding=False, elem_id="race-problem")
                self.names = gr.CheckboxGroup(
                    list(NAMES), value=list(NAMES), label="Methods", elem_id="race-names"
                )
                self.seconds = gr.Slider(
                    1, longest, value=min(4, longest), step=1, label="Seconds for each",
                    elem_id="race-seconds",
                )  # fmt: skip
                self.controls = Controls("race", site)
            with gr.Column(scale=5, min_width=320):
                status = html.banner(html.READY)
                self.status = gr.HTML(status, padding=False, elem_id="race-status")
                self.plot = gr.HTML(html.race_plot(None), padding=False, elem_id="race-plot")
                self.table = gr.HTML(padding=False, elem_id="race-table")
        tab.select(self._opened, None, self.problem, **QUIET)
        outputs = [self.status, self.plot, self.table, self.problem]
        inputs = {self.names, self.seconds}
        self.controls.connect(inputs, outputs, self.status, self._stream)

    @tells_errors
    def _opened(self, request: gr.Request) -> str:
        job = _last_job(self.site.session(request))
        return html.fragment("hint", html.description(job), "Problem")

    def _stream(self, session: Session, values: Updates, request: gr.Request) -> Iterator[Updates]:
        job, site, controls = _last_job(session), self.site, self.controls
        seconds = float(values[self.seconds])
        race = Race(job, values[self.names], seconds, site.executor, site.device, session.bound)
        session.start(race)
        problem = html.fragment("hint", html.description(job), "Problem")
        yield {self.problem: problem, **self._shown(race), **controls.running(True)}
        for _ in controls.watch(race, request):
            yield self._shown(race)
        race.result()
        yield {**self._shown(race), self.status: html.race_verdict(race)}

    def _shown(self, race: Race) -> Updates:
        return {
            self.status: html.banner("Running:", "busy", race.state),
            self.plot: html.race_plot(race),
            self.table: html.standings(race),
        }


def _last_job(session: Session) -> PageJob:
    if session.job is not None:
        return session.job
    return PageJob("denoise", example_picture(FIRST_EXAMPLE), FIRST_RUN)


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
            with gr.Tab("Race", id="race") as tab:
                RaceTab(site, tab)
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


def first_view() -> str:
    """The first picture of the page, shown until Gradio's scripts have loaded."""
    picture = html.chosen_picture(example_picture(FIRST_EXAMPLE))
    return TEMPLATES.get_template("first_view.html").render(picture=picture)
