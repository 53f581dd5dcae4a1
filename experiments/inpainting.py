"""Section 5.3: inpainting with a smooth network,  min_x  1/2 ||A x - y||^2 + gamma R(x).

Table 1, the time to a relative objective error of 1e-3 on 20 images; energy and PSNR against
iterations; pictures after 60 and 300 iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from convexlift.models.store import load
from convexlift.tasks import Inpainting
from experiments.benchmark.cases import Case
from experiments.comparing import Run, SideBySide
from experiments.competitors import (
    DEFAULT,
    DEFAULT_SAME_START,
    L_BFGS,
    Competitor,
    constant,
    diminishing,
    papers_four,
    proposed,
)
from experiments.data import Images, load_faces
from experiments.document import Document, Figure, Section
from experiments.figures import curves
from experiments.measuring import (
    Accuracy,
    Looks,
    Race,
    always,
    average_objective,
    chosen_curve_step,
    curve_step,
    data_step,
    race_step,
    reference_step,
)
from experiments.paper import PaperInpainting, Printed, psnr
from experiments.parts import Part
from experiments.remarks import (
    certificate_reveals,
    error_text,
    images_used,
    psnr_comparisons,
    unbounded_note,
)
from experiments.setup import Setup
from experiments.steps import Step
from experiments.study import Experiment, Study
from experiments.tables import Comparison, number
from experiments.times import Times

REFERENCE = Accuracy(gap=1e-5, iterations=2000)
RACE = Race(error=1e-3, iterations=300, repeats=1)  # the error: section 5.3, Results


@dataclass(frozen=True)
class InpaintingSettings(PaperInpainting):
    """Values of the paper, and how much of them a run does."""

    more_c_1: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)  # ours: what suits this network?
    more_c_2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)  # ours
    more_sm_c: tuple[float, ...] = (0.15, 0.3, 0.6)  # ours
    more_sm_d: tuple[float, ...] = (2.0, 5.0, 15.0)  # ours
    search_iterations: int = 100  # ours
    search_every: int = 5  # ours
    early: int = 60  # Figure "Inpainting: Visual comparison of reconstructions, with PSNR"
    iterations: int = 300  # the same figure
    every: int = 1
    images: int = 20  # section 5.3, Results
    pictures: bool = True  # with the bilevel network, whose pictures the paper shows
    unbounded: bool = True
    reference: Accuracy = REFERENCE
    race: Race = RACE


FULL = InpaintingSettings()
QUICK = replace(
    FULL, more_c_1=(0.1, 1.0), more_c_2=(1e-5,), more_sm_c=(0.3,), more_sm_d=(5.0,),
    search_iterations=40, iterations=150, every=5, images=1, pictures=False, unbounded=False,
    reference=Accuracy(gap=1e-5, iterations=300), race=replace(RACE, iterations=150, repeats=1),
)  # fmt: skip

ADVERSARIAL, BILEVEL = "faces-inpainting-adversarial", "faces-inpainting-bilevel"

TABLE = "5.3, Table 1"
PAPER_SECONDS = {
    "proposed": Printed(0.18, TABLE, "s", 0.026),
    "sm-c": Printed(0.27, TABLE, "s", 0.047),
    "sm-d": Printed(1.35, TABLE, "s", 0.260),
    "nmapg": Printed(0.26, TABLE, "s", 0.032),
}
PAPER_SPEED_UP = {
    "sm-c": Printed(1.52, TABLE),
    "sm-d": Printed(7.50, TABLE),
    "nmapg": Printed(1.47, TABLE),
}
FIGURE = "5.3, visual comparison"
PAPER_DATA = psnr(11.91, FIGURE)
PAPER = {  # PSNR in the corners of its pictures, after 60 and after 300 iterations
    "Proposed": (psnr(29.93, FIGURE), psnr(30.01, FIGURE)),
    "SM-C": (psnr(19.54, FIGURE), psnr(29.97, FIGURE)),
    "SM-D": (psnr(20.82, FIGURE), psnr(27.85, FIGURE)),
    "NMAPG": (psnr(29.75, FIGURE), psnr(30.01, FIGURE)),
}


def steps(study: Study) -> Sequence[Step]:
    """Times and curves with the adversarial network, pictures with the bilevel one."""
    values = QUICK if study.quick else FULL
    images = load_faces(study.data, values.images)
    keep = (values.early, values.iterations)
    setup = Setup(case(ADVERSARIAL, values, images), images, study)
    found = lineup(setup, values, Looks(values.iterations, values.every, keep, values.images))
    for each in competitors(values):
        limit = values.race.iterations if each.printed else values.iterations
        race = replace(values.race, iterations=limit)
        found.append(race_step(setup, each.key, always(each), race, cost=6.0 * values.images))
    found.append(race_step(setup, "searched", same_pair, values.race, cost=6.0 * values.images))
    if values.unbounded:
        looks = Looks(values.iterations, values.iterations)
        for each in competitors(values)[:4]:
            name = f"unbounded-{each.key}"
            found.append(curve_step(setup, each, looks, name=name, cost=20.0, bounded=False))
    if values.pictures:
        shown = Setup(case(BILEVEL, values, images), images, study, prefix="bilevel-")
        found += lineup(shown, values, Looks(values.iterations, values.early, keep, values.images))
    return found


def case(name: str, values: InpaintingSettings, images: Images) -> Case:
    """The paper's task, with the paper's mask where it is there; missing pixels are 0 at first."""
    task = Inpainting(missing=values.missing, noise=values.noise, mask=images.mask, fill="zero")
    return Case("inpainting", name, task, lambda size, seed: load(name), only_size=256)


def competitors(values: InpaintingSettings) -> list[Competitor]:
    """The paper's four with its step sizes first, then those that need none, then other steps."""
    return [
        *papers_four(values),
        DEFAULT,
        DEFAULT_SAME_START,
        L_BFGS,
        *(constant(step, printed=False) for step in values.more_sm_c),
        *(diminishing(step, printed=False) for step in values.more_sm_d),
    ]


def lineup(setup: Setup, values: InpaintingSettings, looks: Looks) -> list[Step]:
    """All methods on one network, and a search for step sizes of the proposed one."""
    search = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Looks(values.search_iterations, values.search_every),
            name=f"search-{c_1:g}-{c_2:g}",
            cost=0.2 * values.search_iterations,
        )
        for c_1 in values.more_c_1
        for c_2 in values.more_c_2
    ]
    names = [step.name for step in search]
    long = values.iterations * values.images
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=10.0 * values.images),
        *search,
        chosen_curve_step(setup, "searched", best_pair, looks, names, cost=0.25 * long),
        *(
            curve_step(setup, each, looks, cost=(0.25 if each.family == "paper" else 0.06) * long)
            for each in competitors(values)
        ),
    ]


def best_pair(parts: Mapping[str, Part]) -> Competitor:
    """The proposed method with the least average objective of a search."""
    best = min(parts.values(), key=average_objective)
    return with_pair(best.values["parameters"])


def same_pair(parts: Mapping[str, Part]) -> Competitor:
    """The one whose curve is there."""
    return with_pair(parts["curve-searched"].values["parameters"])


def with_pair(c: Sequence[float]) -> Competitor:
    """The proposed method with a pair that is not the paper's."""
    label = f"Proposed, c = ({', '.join(f'{value:g}' for value in c)})"
    return replace(proposed(c), key="searched", label=label, printed=False)


def report(parts: Mapping[str, Part]) -> Document:
    """What the parts say."""
    data = parts["data"]
    values = QUICK if data.values["quick"] else FULL
    found = SideBySide.of(parts, values.early, values.iterations)
    shown, shown_data = found, data
    if values.pictures:
        shown = SideBySide.of(parts, values.early, values.iterations, "bilevel-")
        shown_data = parts["bilevel-data"]
    times = Times.of(parts)
    return Document(
        title="Inpainting with a smooth network (section 5.3)",
        summary=[
            about(data, values),
            suits(found, values),
            certificate_reveals(found, found.runs["proposed"], found.runs["searched"]),
        ],
        comparisons=[
            *time_comparisons(times, values),
            *psnr_comparisons(
                shown,
                shown_data,
                PAPER_DATA,
                printed_runs(shown, values),
                PAPER,
                (FULL.early, FULL.iterations),
                searched_runs(shown),
            ),
        ],
        sections=[
            times_section(times, values),
            curves_section(found, values, parts),
            pictures_section(shown, shown_data, values),
        ],
        results={
            "data": dict(data.values),
            "reference": dict(parts["reference"].values),
            "methods": found.as_plain(),
            "times": times.as_plain(),
            "bilevel_methods": shown.as_plain() if values.pictures else None,
        },
    )


def printed_runs(found: SideBySide, values: InpaintingSettings) -> dict[str, Run]:
    """The paper's methods with its step sizes, by its names."""
    first = competitors(values)[:4]
    return {label: found.runs[each.key] for label, each in zip(PAPER, first, strict=True)}


def searched_runs(found: SideBySide) -> dict[str, Run]:
    """The best of the searches."""
    return {
        "Proposed": found.runs["searched"],
        "SM-C": found.best("sm-c", printed=False),
        "SM-D": found.best("sm-d", printed=False),
    }


def about(data: Part, values: InpaintingSettings) -> str:
    """Problem, network and images."""
    fixed = "the paper's fixed mask" if data.values["faithful"] else "the mask beside the images"
    mask = fixed if data.values["mask"] else "random masks"
    return (
        f"The problem is `min_x 1/2 ||A x - y||^2 + {data.values['weight']:g} R(x)`: "
        f"{100 * values.missing:g} % of the pixels are missing ({mask}), the others have Gaussian "
        f"noise of {100 * values.noise:g} %. R is `{ADVERSARIAL}`: the paper's smooth architecture "
        "with our weights, as the paper's are not available; its weight is that of its card, where "
        f"the paper has gamma = 0.1 for a network of another scale. {images_used(data)}"
    )


def suits(found: SideBySide, values: InpaintingSettings) -> str:
    """Whether the printed step sizes do for this network, and what does."""
    rows = []
    for label, run in printed_runs(found, values).items():
        rows.append(f"{label} {error_text(found, run, found.late)}")
    others = searched_runs(found).values()
    better = [f"{run.label}: {error_text(found, run, found.late)}" for run in others]
    return (
        "Step sizes belong to a network and its scale, and those of the paper were chosen for "
        f"another one. With them the objective error after {found.late} iterations is "
        f"{', '.join(rows)}. For fairness each method also has the best of a small search on this "
        f"problem: {', '.join(better)}. NMAPG, L-BFGS and our default have nothing to search."
    )


def time_comparisons(times: Times, values: InpaintingSettings) -> list[Comparison]:
    """Beside the paper's Table 1: seconds, then speed-ups."""
    keys = dict(zip(PAPER_SECONDS, (each.key for each in competitors(values)), strict=False))
    rows = []
    for name, key in keys.items():
        remark = "another machine"
        if not times.all_reached(key):
            remark = f"error above {values.race.error:g} for {values.race.iterations} iterations"
            better = "searched" if name == "proposed" else times.fastest(name)
            if better is not None and times.all_reached(better):
                label = times.parts[better].values["label"]
                remark += f"; {label}: {number(times.mean(better))} s"
        rows.append(
            Comparison(
                f"{times.parts[key].values['label']}, time", PAPER_SECONDS[name],
                times.mean(key), "neither", 0.0, remark, times.deviation(key),
            )
        )  # fmt: skip
    base = "proposed" if times.all_reached("proposed") else "searched"
    for name, printed in PAPER_SPEED_UP.items():
        key = keys[name]
        if not times.all_reached(key):
            key = times.fastest(name) or key
        label = times.parts[key].values["label"]
        remark = f"{label} takes so many times as long as {times.parts[base].values['label']}"
        if times.speed_up(base, key) is None:
            remark = f"{name.upper()} does not get there with any step tried"
        rows.append(
            Comparison(
                f"Speed-up over {name.upper()}", printed, times.speed_up(base, key),
                "neither", 0.25 * printed.value, remark,
            )
        )  # fmt: skip
    return rows


def times_section(times: Times, values: InpaintingSettings) -> Section:
    """Table 1."""
    text = (
        "The optimum is that of our default, run to a certified relative gap of "
        f"{values.reference.gap:g} or {values.reference.iterations} iterations. Iterations to the "
        "error are counted first; then a run of exactly so many is timed, with the set-up (norms "
        "of operators) and without any evaluation on the way, after a warm-up. Images are timed "
        "one by one."
    )
    return Section("Time to an objective error", [text, times.table(values.race.error)])


def curves_section(
    found: SideBySide, values: InpaintingSettings, parts: Mapping[str, Part]
) -> Section:
    """Energy and PSNR against iterations, with the paper's steps and with others."""
    ours = [found.runs[key] for key in ("default", "default-same-start")]
    printed = [*printed_runs(found, values).values(), ours[0], found.runs["lbfgs"]]
    other = [*searched_runs(found).values(), found.runs["nmapg"], *ours, found.runs["lbfgs"]]
    columns = {"the paper's steps": printed, "the best of a search": other}
    rows = [
        [found.energy_panel(runs, f"Objective, {name}") for name, runs in columns.items()],
        [found.error_panel(runs, f"Objective error, {name}") for name, runs in columns.items()],
        [found.psnr_panel(runs, f"PSNR, {name}") for name, runs in columns.items()],
        [found.gap_panel(runs, f"Certified gap, {name}") for name, runs in columns.items()],
    ]
    caption = (
        "Energy and PSNR against iterations, first image, and the gap that each run certifies by "
        "itself, which the paper does not have. Grey: smaller than the certified accuracy of the "
        "optimum. Dotted: the iterations after which the paper shows pictures."
    )
    return Section(
        "Against iterations",
        [
            Figure("curves", caption, lambda: curves(rows)),
            found.table(list(found.runs.values())),
            unbounded_note(found, parts),
        ],
    )


def pictures_section(found: SideBySide, data: Part, values: InpaintingSettings) -> Section:
    """The paper's visual comparison, and the same with searched steps and ours."""
    text = (
        f"The paper shows pictures of its bilevel network; these are of `{BILEVEL}`."
        if values.pictures
        else "The paper shows pictures of its bilevel network; these are of the adversarial one, "
        "as the quick version has no other."
    )
    tiles = found.tiles(data, list(printed_runs(found, values).items()))
    others = [
        *((f"{label} *", run) for label, run in searched_runs(found).items()),
        ("Default", found.runs["default"]),
    ]
    return Section(
        "Pictures",
        [
            text,
            Figure.of_pictures(
                "pictures", "With the paper's step sizes; PSNR in the corner.", tiles
            ),
            Figure.of_pictures(
                "pictures-searched",
                "With the best step sizes of a search (*), and our default.",
                found.tiles(data, others),
            ),
        ],
    )


INPAINTING = Experiment("inpainting", "Inpainting, smooth network", "section 5.3", steps, report)
