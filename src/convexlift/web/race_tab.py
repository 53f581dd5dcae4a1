"""The tab with a race of methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from convexlift.web import html
from convexlift.web.components import QUIET, Controls, Site, Updates, tells_errors
from convexlift.web.job import PageJob
from convexlift.web.race import NAMES, Race
from convexlift.web.tabs import FIRST_EXAMPLE, example_picture
from convexlift.web.visitors import Session


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
                status = html.banner("Press Start.")
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
        ran = [lap for lap in race.laps if lap.checks]
        status = html.banner("No method applies to this problem.", "bad")
        if ran:
            best = min(ran, key=lambda lap: lap.checks[-1][1])
            status = html.banner("Done.", "good", f"Lowest objective: {best.name}.")
        yield {**self._shown(race), self.status: status}

    def _shown(self, race: Race) -> Updates:
        return {
            self.status: html.banner("Racing", "busy", race.state),
            self.plot: html.race_plot(race),
            self.table: html.standings(race),
        }


def _last_job(session: Session) -> PageJob:
    if session.job is not None:
        return session.job
    options = {"simulate": True, "sigma": 0.1, "regularizer": "photo-any-size"}
    return PageJob("denoise", example_picture(FIRST_EXAMPLE), options)
