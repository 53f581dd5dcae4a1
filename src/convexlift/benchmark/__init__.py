"""Methods side by side on the same problems: iterations and seconds to each accuracy.

``convexlift benchmark`` is the command; ``docs/benchmarks.md`` says how it measures.
"""

from convexlift.benchmark.cases import CASES as CASES
from convexlift.benchmark.cases import Case as Case
from convexlift.benchmark.methods import METHODS as METHODS
from convexlift.benchmark.options import QUICK as QUICK
from convexlift.benchmark.options import BenchmarkOptions as BenchmarkOptions
from convexlift.benchmark.results import Results as Results
from convexlift.benchmark.results import Row as Row
from convexlift.benchmark.run import run_benchmark as run_benchmark
