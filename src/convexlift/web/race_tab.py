"""The tab where methods race on the problem that was solved last."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import gradio as gr

from convexlift.web import views
from convexlift.web.choices import FIRST_EXAMPLE, example_picture
from convexlift.web.jobs import DenoisingJob, Job
from convexlift.web.panel import SAME, Visitors, action_buttons, show_on_phones, tell, told
from convexlift.web.photo_tabs import QUIET
from convexlift.web.places import RUNS
from convexlift.web.plots import race_plot
from convexlift.web.race import NAMES, Race
from convexlift.web.sessions import Session

EXPLANATION = """<p class="hint">The methods solve one problem, one after the other, on the same
clock: the one you solved last in another tab. Each curve is the distance of the method's best
objective from the best lower bound that any of them, or your run, proved. <code>default</code>,
<code>nmapg</code> and <code>lbfgs</code> have nothing to tune; the others get the best of several
step sizes, tried for a few iterations before their clock starts.</p>"""


class RaceTab:
    """Methods side by side."""

    def __init__(self, visitors: Visitors) -> None:
        self.visitors = visitors
        longest = max(2.0, visitors.limits.seconds / (2 * len(NAMES)))
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                gr.HTML(EXPLANATION, padding=False)
                self.problem = gr.HTML(padding=False, elem_id="race-problem")
                self.names = gr.CheckboxGroup(
                    list(NAMES), value=list(NAMES), label="Methods", elem_id="race-names"
                )
                self.seconds = gr.Slider(
                    1, longest, value=min(4, longest), step=1, label="Seconds for each",
                    elem_id="race-seconds",
                )  # fmt: skip
                self.start, self.stop = action_buttons("race")
            with gr.Column(scale=5, min_width=320):
                self.status = gr.HTML(
                    views.banner("Press Start."), padding=False, elem_id="race-status"
                )
                self.plot = gr.HTML(race_plot((), "seconds"), padding=False, elem_id="race-plot")
                self.table = gr.HTML(padding=False, elem_id="race-table")

    def connect(self, tab: Any) -> None:
        """Events; opening the tab says what is raced on."""
        tab.select(self._opened, None, self.problem, **QUIET)
        outputs = [self.status, self.plot, self.table, self.problem, self.start, self.stop]
        self.start.click(
            self._begin, [self.names, self.seconds], outputs, concurrency_id=RUNS,
            concurrency_limit=self.visitors.limits.runs, show_progress="minimal",
            show_progress_on=self.status, api_visibility="private",
            js=show_on_phones("race-status"),
        )  # fmt: skip
        self.stop.click(self._end, None, None, queue=False, api_visibility="private")

    @told(SAME)
    def _opened(self, request: gr.Request) -> str:
        return _told(_job(self.visitors.session(request)))

    def _end(self, request: gr.Request) -> None:
        self.visitors.session(request).stop()

    def _begin(
        self, names: list[str], seconds: float, request: gr.Request
    ) -> Iterator[dict[Any, Any]]:
        try:
            session = self.visitors.session(request)
            job = _job(session)
            visitors = self.visitors
            race = Race(
                job, tuple(names), float(seconds), visitors.device, session.bound, visitors.slots
            )
            session.begin(race.stop)
            race.start()
            yield {
                self.status: views.banner("Racing", "busy"),
                self.problem: _told(job),
                self.start: gr.update(interactive=False),
                self.stop: gr.update(interactive=True),
            }
            for news in race.news():
                if not visitors.keeps_up(request):
                    continue
                yield {self.status: views.banner("Racing", "busy", news), **self._drawn(race)}
            yield {self.status: self._verdict(race), **self._drawn(race)}
        except Exception as error:
            said = tell(error)
            yield {self.status: views.banner(said.sentence, "bad", said.hint)}
        yield {self.start: gr.update(interactive=True), self.stop: gr.update(interactive=False)}

    def _drawn(self, race: Race) -> dict[Any, Any]:
        return {
            self.plot: race_plot(race.lines(), "seconds"),
            self.table: views.standings(race),
        }

    def _verdict(self, race: Race) -> str:
        ran = [lap for lap in race.laps if lap.objective]
        if not ran:
            return views.banner("No method applies to this problem.", "bad")
        best = min(ran, key=lambda lap: lap.objective[-1])
        return views.banner("Done.", "good", f"Lowest objective: {best.name}.")


def _job(session: Session) -> Job:
    if session.job is not None:
        return session.job
    return DenoisingJob(picture=example_picture(FIRST_EXAMPLE), regularizer="photo-any-size")


def _told(job: Job) -> str:
    return f"<p><b>Problem:</b> {html.escape(views.description(job))}</p>"
