"""Steps of one or more experiments, computed by several processes side by side.

A step needs the parts of earlier steps, and parts are files: a process that is given the name of a
step reads them, computes, and writes the part. Steps with the longest way to the end start first.
Steps that measure times run alone, after all others. So does, a second time, a step that did not
find enough memory beside others.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.runner.parts import Listener, PartStore, Plan
from experiments.runner.run import Experiment, Study, compute, environment, prepared

Load = Callable[[], Mapping[str, Experiment[Any]]]
"""A function of a module that gives all experiments; processes import it."""


class Named(NamedTuple):
    """A step of an experiment."""

    experiment: str
    step: str


def compute_all(
    load: Load,
    folders: Mapping[str, Path],
    study: Study,
    jobs: int = 1,
    listener: Listener = lambda title, done, total: None,
    *,
    force: bool = False,
) -> None:
    """``compute`` for experiments, given with their folders, by as many processes as ``jobs``."""
    experiments = load()
    if jobs == 1:
        for name, folder in folders.items():
            compute(experiments[name], study, folder, listener, force=force)
        return
    with ExitStack() as runs:
        plans = {
            name: runs.enter_context(prepared(experiments[name], study, folder, force=force))
            for name, folder in folders.items()
        }
        if all(not plan.missing for plan in plans.values()):
            return
        pool = ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(_Worker(load, study, dict(folders), torch.get_num_threads(), jobs),),
        )  # fmt: skip
        root = str(Path(__file__).parents[2])
        sys.path.insert(0, root)  # new processes get this path, and import ``experiments``
        try:
            _Schedule(plans, jobs, listener).run(lambda step: pool.submit(_compute, step))
        finally:
            pool.shutdown(cancel_futures=True)
            sys.path.remove(root)


class _Schedule:
    """The steps that wait, and those that run."""

    def __init__(self, plans: Mapping[str, Plan], jobs: int, listener: Listener) -> None:
        self.plans, self.jobs, self.listener = plans, jobs, listener
        self.running: dict[Future[None], Named] = {}
        self.waiting = {
            Named(name, step.name): step for name, plan in plans.items() for step in plan.missing
        }
        self.alone = {each for each, step in self.waiting.items() if step.alone}
        self.total = sum(step.cost for step in self.waiting.values())
        self.done = 0.0
        self.failures: list[BaseException] = []
        ways = {name: _ways(plan) for name, plan in plans.items()}
        self.order = sorted(self.waiting, key=lambda each: -ways[each.experiment][each.step])

    def run(self, submit: Callable[[Named], Future[None]]) -> None:
        """Submit steps as soon as their parts are there.

        A step that fails does not stop those that do not need it; the first error is raised at the
        end.
        """
        while (ready := self._ready()) or self.running:
            for each in ready[: self.jobs - len(self.running)]:
                title = self.waiting.pop(each).title or each.step
                self.running[submit(each)] = each
                self.listener(f"{each.experiment}: {title}", self.done, self.total)
            for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                self._finish(self.running.pop(future), future)
        if self.failures:
            raise self.failures[0]
        self.listener("done", self.total, self.total)

    def _ready(self) -> list[Named]:
        """Steps that may start now, in order."""
        found = [
            each for each in self.order
            if each in self.waiting
            and all(name in self.plans[each.experiment].finished
                    for name in self.waiting[each].needs)
        ]  # fmt: skip
        beside = [each for each in found if each not in self.alone]
        if beside or self.running:
            return beside
        return found[:1]

    def _finish(self, each: Named, future: Future[None]) -> None:
        plan = self.plans[each.experiment]
        (step,) = (step for step in plan.steps if step.name == each.step)
        if (error := future.exception()) is not None:
            if isinstance(error, torch.OutOfMemoryError | MemoryError) and each not in self.alone:
                self.alone.add(each)
                self.waiting[each] = step
                return
            if isinstance(error, KeyboardInterrupt | BrokenExecutor):
                raise error
            self.failures.append(error)
            self.listener(f"{each.experiment}: {each.step} failed: {error}", self.done, self.total)
            return
        part = plan.store.read(each.step, plan.digests[each.step])
        assert part is not None, f"{each.step} was computed and is not in {plan.store.folder}"
        plan.finished[each.step] = part
        self.done += step.cost


def _ways(plan: Plan) -> dict[str, float]:
    """The cost of the most expensive chain of steps that begins with a step, by name."""
    ways = {step.name: step.cost for step in plan.steps}
    after: dict[str, float] = dict.fromkeys(ways, 0.0)
    for step in reversed(plan.steps):
        ways[step.name] = step.cost + after[step.name]
        for name in step.needs:
            after[name] = max(after[name], ways[step.name])
    return ways


# In a process of the pool -------------------------------------------------------------------------


@dataclass(eq=False)
class _Worker:
    """The experiments, and those that this process has met."""

    load: Load
    study: Study
    folders: Mapping[str, Path]
    threads: int  # that a step alone may use, as without other processes
    jobs: int

    def __post_init__(self) -> None:
        self.plans: dict[str, Plan] = {}

    def compute(self, each: Named) -> None:
        """Compute a step from the parts on disk, and write its part."""
        name = each.experiment
        if name not in self.plans:
            experiment = self.load()[name]
            steps = experiment.steps(self.study, experiment.settings(self.study.quick))
            self.plans[name] = Plan(steps, PartStore(self.folders[name] / "parts"))
        plan = self.plans[name]
        (step,) = (step for step in plan.steps if step.name == each.step)
        for needed in set(step.needs) - set(plan.finished):
            part = plan.store.read(needed, plan.digests[needed])
            assert part is not None, f"{each.step} needs {needed}, which is not there"
            plan.finished[needed] = part
        torch.set_num_threads(self.threads if step.alone else max(1, self.threads // self.jobs))
        try:
            plan.compute(step, environment(self.study.device))
        finally:
            torch.cuda.empty_cache()  # for the other processes


_worker: _Worker | None = None


def _begin(worker: _Worker) -> None:
    global _worker
    _worker = worker


def _compute(each: Named) -> None:
    assert _worker is not None
    try:
        _worker.compute(each)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # one that does not travel would break the pool, and be lost
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
