"""The runner of all studies: steps, finished parts in files, exact resume, reports.

OUTPUT/parts/     finished parts
OUTPUT/run.json   options of the run, its parts with their digests, whether all are there
OUTPUT/...        the report, see ``report.write``
"""

from experiments.runner.parts import Array as Array
from experiments.runner.parts import Part as Part
from experiments.runner.parts import Parts as Parts
from experiments.runner.report import Document as Document
from experiments.runner.report import Section as Section
from experiments.runner.report import document as document
from experiments.runner.run import Experiment as Experiment
from experiments.runner.run import Study as Study
from experiments.runner.steps import Step as Step
from experiments.runner.steps import Work as Work
