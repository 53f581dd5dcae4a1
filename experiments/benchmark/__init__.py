"""Methods side by side on the same problems: iterations and seconds to each accuracy.

``convexlift benchmark`` is the command; ``docs/benchmarks.md`` describes the measurements.
"""
