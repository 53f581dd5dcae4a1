"""Image reconstruction with learned convex regularizers, and a proof with every image.

min_x  D(A x, y) + weight R(x),    R an input-convex neural network.

Public names are listed in ``__init__.pyi`` and imported when they are first used: this import
loads neither torch nor anything else that takes long.
"""

from convexlift.lazy_names import lazy_names as _lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = _lazy_names(__name__, adapters=("cil", "deepinv"))
