"""Methods side by side on the same problems: iterations and seconds to each accuracy.

``python -m experiments.benchmark`` is the command; ``docs/benchmarks.md`` describes what is
measured.
"""
