"""Training: adversarial and bilevel learning of convex regularizers.

Every random choice is a pure function of a seed and its position in the run, so a resumed run and a
run on several devices draw the same numbers as one uninterrupted process.
"""

from convexlift.solvers.hypergradients import Hypergradient as Hypergradient
from convexlift.solvers.hypergradients import Implicit as Implicit
from convexlift.solvers.hypergradients import JacobianFree as JacobianFree
from convexlift.solvers.hypergradients import Unrolled as Unrolled
from convexlift.solvers.hypergradients import ValueFunction as ValueFunction
from convexlift.training.data import Batch as Batch
from convexlift.training.data import BatchSampler as BatchSampler
from convexlift.training.image_sets import ImageSet as ImageSet
from convexlift.training.image_sets import mix as mix
from convexlift.training.initialization import absorb_weight_ as absorb_weight_
from convexlift.training.initialization import start_from_filters_ as start_from_filters_
from convexlift.training.initialization import start_uniformly_ as start_uniformly_
from convexlift.training.loop import Trained as Trained
from convexlift.training.loop import TrainingOptions as TrainingOptions
from convexlift.training.loop import train as train
from convexlift.training.objectives import Adversarial as Adversarial
from convexlift.training.objectives import Bilevel as Bilevel
from convexlift.training.presets import PRESETS as PRESETS
from convexlift.training.recipes import AdversarialRecipe as AdversarialRecipe
from convexlift.training.recipes import AnyRecipe as AnyRecipe
from convexlift.training.recipes import BilevelRecipe as BilevelRecipe
from convexlift.training.recipes import NetworkSettings as NetworkSettings
from convexlift.training.recipes import RecipeResult as RecipeResult
from convexlift.training.recipes import follow as follow
from convexlift.training.run_files import plain_settings as plain_settings
from convexlift.training.validation import Validation as Validation
