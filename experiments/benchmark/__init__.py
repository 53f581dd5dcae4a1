"""Methods side by side on the same problems: iterations and seconds to each accuracy.

``convexlift benchmark`` is the command; ``docs/benchmarks.md`` says how it measures.
"""

from experiments.benchmark.cases import CASES as CASES
from experiments.benchmark.cases import Case as Case
from experiments.benchmark.options import QUICK as QUICK
from experiments.benchmark.options import BenchmarkOptions as BenchmarkOptions
from experiments.benchmark.results import Results as Results
from experiments.benchmark.results import Row as Row
from experiments.benchmark.run import run_benchmark as run_benchmark
