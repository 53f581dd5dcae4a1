"""A user's own files: noise, masks, weights, batches, results; all of ``convexlift reconstruct``.

    sources  ->  cases (noise, masks, weights)  ->  engine  ->  records and files

``reconstruct`` runs it; the modules have the parts.
"""

from convexlift.reconstruction.batch import Outcome as Outcome
from convexlift.reconstruction.batch import Report as Report
from convexlift.reconstruction.batch import reconstruct as reconstruct
from convexlift.reconstruction.engine import Engine as Engine
from convexlift.reconstruction.input_files import InputError as InputError
from convexlift.reconstruction.input_files import find_sources as find_sources
from convexlift.reconstruction.masks import MaskChoice as MaskChoice
from convexlift.reconstruction.noise import Noise as Noise
from convexlift.reconstruction.noise import estimate_noise as estimate_noise
from convexlift.reconstruction.output_paths import check_targets as check_targets
from convexlift.reconstruction.photographs import Photographs as Photographs
from convexlift.reconstruction.tomography import Scans as Scans
