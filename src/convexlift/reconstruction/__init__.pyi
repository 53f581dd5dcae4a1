"""The public names; ``lazy_names`` reads them from here too."""

from convexlift.reconstruction.batch import BatchListener as BatchListener
from convexlift.reconstruction.batch import BatchResult as BatchResult
from convexlift.reconstruction.batch import reconstruct_files as reconstruct_files
from convexlift.reconstruction.calls import reconstruct as reconstruct
from convexlift.reconstruction.calls import reconstruct_many as reconstruct_many
from convexlift.reconstruction.calls import reconstructor_for as reconstructor_for
from convexlift.reconstruction.contents import InputError as InputError
from convexlift.reconstruction.noise import Noise as Noise
from convexlift.reconstruction.noise import estimate_noise as estimate_noise
from convexlift.reconstruction.pictures import Denoiser as Denoiser
from convexlift.reconstruction.pictures import Inpainter as Inpainter
from convexlift.reconstruction.reconstructor import PreparedImage as PreparedImage
from convexlift.reconstruction.reconstructor import Reconstruction as Reconstruction
from convexlift.reconstruction.scans import ScanReconstructor as ScanReconstructor
from convexlift.reconstruction.sources import check_targets as check_targets
from convexlift.reconstruction.sources import find_sources as find_sources
