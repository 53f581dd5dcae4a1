"""Published regularizers, read from the files of their authors and converted exactly.

``load`` recognises a file by the names and shapes of its tensors. Nothing in a file is executed.
Definitions follow the published code, named in each module; conversion changes values of R only by
the rounding of its weights.
"""

from convexlift.models.interop.loading import FORMATS as FORMATS
from convexlift.models.interop.loading import load as load

__all__ = ["FORMATS", "load"]
