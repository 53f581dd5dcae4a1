"""Trained regularizers in files: ``save``, ``load``, the shipped models and their cards."""

from convexlift.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
