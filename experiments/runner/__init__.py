"""The runner of all studies: steps, finished parts in files, exact resume, reports.

OUTPUT/parts/     finished parts
OUTPUT/run.json   options of the run, its parts with their digests, whether all are there
OUTPUT/...        the report, see ``report.write``
"""

from experiments.runner.parts import Array as Array
from experiments.runner.parts import Part as Part
from experiments.runner.parts import Parts as Parts
from experiments.runner.parts import Step as Step
from experiments.runner.parts import Work as Work
from experiments.runner.run import Experiment as Experiment
from experiments.runner.run import Study as Study
