"""The paper's experiments and the benchmark of methods; a part of the repository, not of the wheel.

``python -m experiments NAME`` computes an experiment and writes a report with our numbers beside
the paper's; with ``--compute`` it needs no matplotlib. ``python -m experiments.benchmark`` compares
methods. Only public names of ``convexlift`` are used.

An experiment of the paper is a folder:

1. ``steps.py`` begins with the settings: one frozen record with the paper's section behind each
   value, in full and ``quick``.
2. ``steps(study, settings) -> [Step, ...]`` is the computation. A ``runner.Step`` has a name, all
   settings that its result depends on, the earlier steps it ``needs``, and ``compute(work) ->
   Part``. A part is plain values and NumPy arrays. It is written to OUTPUT/parts when it is done,
   and computed again only when its settings, or those of its needs, change.
3. ``report(parts, settings) -> Document`` uses the parts alone: ``report.md`` is a text template
   with numbers, comparisons with the paper's, tables and figures from ``report.py``.
4. ``EXPERIMENT``, in ``__init__.py``, is entered in ``registry``; ``catalogue`` has its heading.

Shared by all: ``common_steps`` (methods and steps), ``setups`` (a task with images and a
regularizer, loaded or trained), ``measuring`` (reference optima, curves, times), ``comparing``
(runs side by side), ``document`` (tables and reports), ``figures``, ``images``, ``authors`` (their
files and their data), ``overview`` (the page of all). ``denoising`` is the example to follow.
"""
