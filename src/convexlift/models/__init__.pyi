"""The public names; ``lazy_names`` reads them from here too."""

from convexlift.models.files import ModelCard as ModelCard
from convexlift.models.files import card as card
from convexlift.models.files import names as names
from convexlift.models.store import load as load
from convexlift.models.store import save as save
