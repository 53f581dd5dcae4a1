"""From a file or an image to a reconstruction with its proof: ``cl.reconstruct``, and many files.

    noise  ->  weight  ->  problem  ->  solution  ->  record

``options`` has the options of the tasks, ``pictures`` and ``scans`` prepare images,
``reconstructor`` solves the prepared images, and ``batch`` runs over many files.
"""

from convexlift.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
