"""Solve random problems and look for a claim that is not true: ``python -m soak.problems``.

A violation is: a lower bound above the objective of any image that any method found (both with
rounding accounted for) or above the optimum of an interior-point solver; NaN in an image; a status
that contradicts the gap; an objective below that of its image; another result for the same seed;
a batch that contradicts its images solved one by one; a proof file that the independent checker
rejects; an exception; a solve that takes much longer than it may.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

import convexlift as cl
from convexlift.problems.claims import in_double, objective_above
from soak.random_problems import Case, random_case

SECONDS = 30.0
"""A solve that may take 5 seconds, with its claims, takes less than this on a busy machine."""
AGAIN, ALONE, PROVED, OPTIMA = 20, 14, 5, 40
"""Every so many cases are solved again, image by image, through the checker, by Clarabel."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came out of one case."""

    seed: int
    words: tuple[str, ...]
    statuses: tuple[str, ...]
    guarantees: tuple[str, ...]
    tame: bool
    seconds: float
    violations: tuple[str, ...]
    proof: str = ""


def examine(seed: int, only: str = "") -> Outcome:
    """Solve the case of a seed and list its violations; not a case without the word ``only``."""
    begin = time.perf_counter()
    try:
        case = random_case(seed)
        if case.method is not None:
            case.method.solver(case.problem)
    except ValueError as error:  # an empty box, say, or a method that does not apply
        return Outcome(
            seed, (), (f"REFUSED: {str(error).partition(' got')[0][:40]}",), (), False, 0.0, ()
        )
    if only and only not in case.words:
        return Outcome(seed, (), (), (), False, 0.0, ())
    torch.set_num_threads(case.threads)
    proof = ""
    try:
        solution = _solve(case)
        found = list(_violations(case, solution, time.perf_counter() - begin))
        if case.seed % PROVED == 0 and cl.Guarantee.NONE not in solution.guarantee:
            proof, *wrong = _checked(solution)
            found += wrong
        statuses = tuple(status.name for status in solution.status)
        guarantees = tuple(guarantee.name for guarantee in solution.guarantee)
    except Exception:  # whatever it is, it is a finding
        found, statuses, guarantees = [traceback.format_exc()], ("EXCEPTION",), ()
    seconds = time.perf_counter() - begin
    return Outcome(seed, case.words, statuses, guarantees, case.tame, seconds, tuple(found), proof)


def _solve(case: Case) -> cl.Solution:
    with contextlib.ExitStack() as stack:
        if case.autocast:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        return cl.solve(case.problem, method=case.method, stop=case.stop)


def _violations(case: Case, solution: cl.Solution, seconds: float) -> Iterator[str]:
    problem, x = case.problem, solution.x
    if seconds > SECONDS:
        yield f"took {seconds:.0f} s"
    if not torch.isfinite(x).all():
        yield "NaN or infinite pixels"
        return
    double = in_double(problem)
    objective, lower = solution.objective.double(), solution.lower_bound.double()
    own = double.objective(x.double())
    if not (objective >= own * (1 - 1e-15 * own.sign())).all():
        yield f"objective {objective.tolist()} below that of the image, {own.tolist()}"
    if not (lower <= objective).all() or lower.isnan().any():
        yield f"bound {lower.tolist()} above the objective {objective.tolist()}"
    for i, (status, gap) in enumerate(zip(solution.status, solution.gap.tolist(), strict=True)):
        if (status is cl.Status.CONVERGED) != (gap <= case.stop.gap):
            yield f"image {i} is {status.name} with a gap of {gap}"
    scope = torch.tensor([g is cl.Guarantee.GLOBAL for g in solution.guarantee])
    start = double.objective(double.initial_image())
    if (objective.isinf() & start.isfinite()).any():
        yield f"objective {objective.tolist()}, though that of the start is {start.tolist()}"
    for name, rivals in _rivals(double, x.double(), case.seed):
        values = objective_above(double, rivals)
        if (scope & (values < lower)).any():
            yield f"{name}: objective {values.tolist()} below the bound {lower.tolist()}"
    if case.seed % AGAIN == 0 and cl.Status.TIME_LIMIT not in solution.status:
        again = _solve(case)
        same = torch.equal(again.x, x) and torch.equal(again.lower_bound, solution.lower_bound)
        # On a busy machine only one of the two may run out of time.
        if not same and cl.Status.TIME_LIMIT not in again.status:
            yield "another result for the same seed"
    if case.seed % ALONE == 0 and problem.batch_size > 1:
        yield from _alone(case, solution)
    if case.tame and case.seed % OPTIMA == 0 and x[0].numel() <= 64:
        yield from _against_clarabel(double, solution)


def _rivals(
    double: cl.VariationalProblem, x: torch.Tensor, seed: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Images that one of two methods finds from x in double precision, and x moved a little."""
    stop = cl.StopWhen(gap=1e-9, max_iterations=15, check_every=15, seconds=2.0)
    method = None if seed % 4 == 1 else cl.LBFGS()
    yield f"better by {method}", cl.solve(double, method=method, stop=stop, start=x).x
    generator = torch.Generator().manual_seed(0)
    for size in (1e-9, 1e-3):
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        yield f"moved by {size}", double.bounds.project(x + size * x.abs().mean() * noise)


def _alone(case: Case, solution: cl.Solution) -> Iterator[str]:
    """The optimum of an image lies between bound and objective, in a batch and alone."""
    for i in range(case.problem.batch_size):
        one = case.problem.select(torch.tensor([i]))
        assert one is not None
        alone = cl.solve(one, method=case.method, stop=case.stop)
        pair = (solution.guarantee[i], alone.guarantee[0])
        if cl.Guarantee.WITHIN_RADIUS in pair:
            continue
        apart = alone.lower_bound > solution.objective[i], solution.lower_bound[i] > alone.objective
        if any(bool(test) for test in apart):
            yield f"image {i} of the batch contradicts the same image alone"


def _checked(solution: cl.Solution) -> Iterator[str]:
    """Whether the checker confirms the proof, then what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = solution.proof.save(Path(folder) / "x.proof")
        try:
            verdicts = cl.verify(path)
        except ValueError as error:
            if "only" in str(error):  # the checker's own error bounds are wider here and there
                yield "not confirmed to the last digit"
            else:
                yield "rejected"
                yield f"the checker rejects the proof: {error}"
            return
    yield "confirmed"
    for i, verdict in enumerate(verdicts):
        if verdict.lower_bound > float(solution.objective[i]):
            yield f"the checker's bound {verdict.lower_bound} is above the objective"


def _against_clarabel(double: cl.VariationalProblem, solution: cl.Solution) -> Iterator[str]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from oracle import optimum  # the tests' statement of problems to CVXPY

    for i in range(double.batch_size):
        one = double.select(torch.tensor([i]))
        if solution.guarantee[i] is not cl.Guarantee.GLOBAL or one is None:
            continue
        try:
            value, _ = optimum(one)
        except Exception:  # Clarabel gives up on some
            continue
        scale = abs(value) + float(
            one.fidelity.value(torch.zeros_like(one.fidelity.y)).nan_to_num(0, 0, 0)
        )
        if float(solution.lower_bound[i]) > value + 1e-5 * scale:
            yield f"bound {float(solution.lower_bound[i])} above the optimum {value} of Clarabel"


def _examine(seed: int, only: str) -> Outcome:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return examine(seed, only)


def main() -> int:
    """Count, print what was found, and fail if anything was."""
    parser = argparse.ArgumentParser(prog="python -m soak.problems", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many problems")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="with this part, such as network=adaptive")
    parser.add_argument("--seconds", type=float, default=1500.0, help="stop after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    begin, outcomes = time.perf_counter(), []
    seeds = range(options.first, options.first + options.count)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        examined = functools.partial(_examine, only=options.only)
        for outcome in pool.imap_unordered(examined, seeds, chunksize=4):
            outcomes.append(outcome)
            for violation in outcome.violations:
                print(f"seed {outcome.seed} ({', '.join(outcome.words)}): {violation}", flush=True)
            if time.perf_counter() - begin > options.seconds:
                pool.terminate()
                break
    report = _report(outcomes, options.first, time.perf_counter() - begin)
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if report["violations"] or len(outcomes) < options.count else 0


def _report(outcomes: list[Outcome], first: int, seconds: float) -> dict[str, object]:
    def counted(values: Iterator[str]) -> dict[str, int]:
        return dict(collections.Counter(values).most_common())

    tame = [s for o in outcomes if o.tame for s in o.statuses]
    return {
        "problems": sum(bool(o.statuses) for o in outcomes),
        "first seed": first,
        "images": sum(len(o.statuses) for o in outcomes),
        "seconds": round(seconds),
        "violations": sum(len(o.violations) for o in outcomes),
        "statuses": counted(s for o in outcomes for s in o.statuses),
        "statuses at ordinary scales": counted(iter(tame)),
        "guarantees": counted(g for o in outcomes for g in o.guarantees),
        "proofs": counted(o.proof for o in outcomes if o.proof),
        "parts": counted(w for o in outcomes for w in o.words),
        "slowest": round(max((o.seconds for o in outcomes), default=0.0), 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
