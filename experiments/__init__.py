"""The paper's experiments and the benchmark of methods; a part of the repository, not of the wheel.

``convexlift reproduce NAME`` computes an experiment and writes a report with our numbers beside
the paper's; ``python -m experiments NAME`` only computes, and needs neither matplotlib nor typer.
``convexlift benchmark`` compares methods. Only public names of ``convexlift`` are used.

An experiment of the paper is a folder:

1. ``settings``: one frozen record with the paper's section behind each value, in full and
   ``quick``.
2. ``steps(study, settings) -> [Step, ...]``: the computation. A ``runner.Step`` has a name, all
   settings that its result depends on, the earlier steps it ``needs``, and ``compute(work) ->
   Part``. A part is plain values and NumPy arrays. It is written to OUTPUT/parts when it is done,
   and computed again only when its settings, or those of its needs, change.
3. ``report(parts, settings) -> Document``, from the parts alone: ``report.md``, a text template,
   with numbers, comparisons with the paper's, tables and figures from ``report.py``.
4. ``EXPERIMENT``, entered in ``registry``, with its heading in ``catalogue``.

Shared by all: ``setups`` (a task with a regularizer and images), ``methods``, ``measuring``
(reference optima, curves, times), ``common_steps``, ``learned`` (trainings), ``comparing`` (runs
side by side), ``document``, ``figures``, ``tables``, ``paper``. ``denoising`` is the example to
follow.
"""
