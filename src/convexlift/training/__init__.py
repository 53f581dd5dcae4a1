"""Training: images and the batches that are drawn from them.

Every random choice is a pure function of a seed and of the place where it is made, so a resumed run
and a run on several devices draw what one uninterrupted process draws.
"""

from convexlift.training.data import Batch, BatchSampler, ImageSet

__all__ = ["Batch", "BatchSampler", "ImageSet"]
