"""Trained regularizers in files: ``save``, ``load``, the names shipped, and their cards."""

from convexlift.models.cards import ModelCard as ModelCard
from convexlift.models.files import names as names
from convexlift.models.store import card as card
from convexlift.models.store import load as load
from convexlift.models.store import save as save

__all__ = ["ModelCard", "card", "load", "names", "save"]
