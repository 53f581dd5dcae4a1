"""Experiments of the paper, each by one command, with our numbers beside the paper's.

``convexlift reproduce NAME`` computes and writes a report; ``python -m experiments``
only computes, and needs neither matplotlib nor typer.

An experiment is one module that reads from top to bottom:

1. **Settings**, a frozen record with the paper's section behind each value, once in full and
   once ``QUICK``; and the numbers that the paper prints, as ``paper.Printed``.
2. ``steps(study) -> [Step, ...]``: what to compute. A ``steps.Step`` has a name, all settings that
   its result depends on, the earlier steps it ``needs``, and ``compute(work) -> Part``, where
   ``work.parts[name]`` is what it needs and ``work.tell(fraction)`` moves the progress bar. A
   ``parts.Part`` is plain values and NumPy arrays. It is written to OUTPUT/parts when it is done,
   and is computed again only when its settings, or those of what it needs, change.
3. ``report(parts) -> Document``: what came out, from parts alone. A ``document.Document`` has a
   summary, ``tables.Comparison`` records (quantity, paper, ours) and sections of paragraphs,
   ``Table`` and ``Figure``; a figure is a function that draws, called only when the report is
   written.
4. ``NAME = Experiment(...)``, entered in ``experiments.EXPERIMENTS``.

Shared by all: ``setup.Setup`` (a ``benchmark.cases.Case`` with images: problems, starts, the
settings they depend on), ``measuring`` (steps for data, reference optima, curves, times to an
error), ``competitors`` (methods with labels and families; the family is the colour),
``comparing.SideBySide`` (all curves of an experiment: who is best, panels, tables, rows of
pictures), ``figures``, ``data``. ``denoising`` is the example to follow.
"""
