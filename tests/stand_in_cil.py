"""A stand-in for CIL 24 and its successors, with what ``convexlift.cil`` and its users call.

CIL itself is installed with conda only, which tests do not need. Signatures, returned values, what
happens in place, the order of calls in FISTA, and what is refused follow its source:
``algorithms/{Algorithm,FISTA}.py``, ``functions/{Function,LeastSquares,L2NormSquared}.py`` and
``framework/{data_container,image_geometry,block}.py``.
"""

from __future__ import annotations

import copy
import sys
import types
from functools import partialmethod
from numbers import Number

import numpy as np


class Geometry:
    def __init__(self, *shape, dtype=np.float32):
        self.shape, self.dtype = shape, dtype

    def allocate(self, value=0, dtype=None):
        """Filled with a number; ``None`` leaves the memory as it is."""
        array = np.empty(self.shape, dtype=dtype or self.dtype)
        array.fill(np.nan if value is None else value)
        return Container(array, self)


class Container:
    """A CIL ``DataContainer``: results go to ``out``, which is returned, or to a new container."""

    def __init__(self, array, geometry):
        if type(array) is not np.ndarray:
            raise TypeError(f"an array of NumPy is expected, got {type(array)}")
        if array.shape != geometry.shape:
            raise ValueError(f"shape mismatch {array.shape} {geometry.shape}")
        self.array, self.geometry = array, copy.deepcopy(geometry)

    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return self.array.dtype

    def as_array(self):
        return self.array

    def fill(self, values):
        """From a number, an array, or a container; real numbers cannot take complex ones."""
        if not isinstance(values, (Number, np.ndarray, Container)):
            raise TypeError(f"can fill only with numbers, arrays or containers, got {type(values)}")
        np.copyto(self.array, getattr(values, "array", values))

    def copy(self):
        return copy.deepcopy(self)

    def _binary(self, function, other, out=None):
        if not isinstance(other, (Number, np.ndarray, Container)):
            raise TypeError(f"expected a number or a container, got {type(other)}")
        other = getattr(other, "array", other)
        if out is None:
            return Container(function(self.array, other), self.geometry)
        function(self.array, other, out=out.as_array())
        return out

    add = partialmethod(_binary, np.add)
    subtract = partialmethod(_binary, np.subtract)
    multiply = partialmethod(_binary, np.multiply)
    divide = partialmethod(_binary, np.divide)
    __mul__ = __rmul__ = multiply
    __sub__ = subtract

    def sapyb(self, a, y, b, out=None):
        """a self + b y, in the precision of ``out``, which may be self or y."""
        out = self.multiply(0.0) if out is None else out
        a, b = (np.asarray(getattr(each, "array", each), dtype=out.dtype) for each in (a, b))
        out.array[...] = a * self.array + b * y.array
        return out

    def __iadd__(self, other):
        return self.add(other, out=self)

    def __imul__(self, other):
        return self.multiply(other, out=self)

    def dot(self, other):
        return np.dot(self.array.ravel(), other.array.ravel())


class Block:
    """Several containers. Its shape counts them, and there is no array."""

    def __init__(self, *containers):
        self.containers, self.shape = containers, (len(containers), 1)


class BlockGeometry:
    def __init__(self, *geometries):
        self.geometries, self.shape = geometries, (len(geometries), 1)

    def allocate(self, value=0):
        return Block(*(each.allocate(value) for each in self.geometries))


class InPlaceError(RuntimeError):
    pass


class Function:
    """The base class: Moreau's identity, sums and multiples, as CIL states them."""

    def __init__(self, L=None):
        self._L = L

    @property
    def L(self):
        return self._L

    @L.setter
    def L(self, value):
        if not isinstance(value, Number) or value < 0:
            raise TypeError("the Lipschitz constant is a positive number")
        self._L = value

    def proximal_conjugate(self, x, tau, out=None):
        return _moreau(self.proximal, x, tau, 1.0 / tau, out)

    def __add__(self, other):
        return Sum(self, other)

    def __rmul__(self, scalar):
        return Scaled(self, scalar)


def _moreau(proximal, x, tau, inner, out):
    """x - tau proximal(x / tau); x is divided in place, and multiplied again."""
    if x is out:
        raise InPlaceError
    x.divide(tau, out=x)
    value = proximal(x, inner, out=out)
    x.multiply(tau, out=x)
    value.sapyb(-tau, x, 1.0, out=value)
    return value


class Sum(Function):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    @property
    def L(self):
        constants = [each.L for each in self.functions]
        return None if None in constants else sum(constants)

    def __call__(self, x):
        return sum(each(x) for each in self.functions)

    def gradient(self, x, out=None):
        if x is out:
            raise InPlaceError
        first, *others = self.functions
        found = first.gradient(x, out=out)
        for each in others:
            found += each.gradient(x)
        return found


class Scaled(Function):
    def __init__(self, function, scalar):
        super().__init__()
        if not isinstance(scalar, Number):
            raise TypeError(f"expected scalar: got {type(scalar)}")
        self.function, self.scalar = function, scalar

    @property
    def L(self):
        return None if self.function.L is None else abs(self.scalar) * self.function.L

    def __call__(self, x):
        return self.scalar * self.function(x)

    def gradient(self, x, out=None):
        found = self.function.gradient(x, out=out)
        found *= self.scalar
        return found

    def proximal(self, x, tau, out=None):
        return self.function.proximal(x, tau * self.scalar, out=out)


class LeastSquares(Function):
    """c |A x - b|^2, with c = 1 unless it is given."""

    def __init__(self, A, b, c=1.0):
        super().__init__(L=2 * c * A.norm() ** 2)
        self.A, self.b, self.c = A, b, c

    def _residual(self, x):
        residual = self.A.direct(x)
        return residual.subtract(self.b, out=residual)

    def __call__(self, x):
        residual = self._residual(x)
        return residual.dtype.type(self.c) * residual.dot(residual)

    def gradient(self, x, out=None):
        out = x * 0.0 if out is None else out
        self.A.adjoint(self._residual(x), out=out)
        return out.multiply(2.0 * self.c, out=out)


class L2NormSquared(Function):
    """|x - b|^2."""

    def __init__(self, b):
        super().__init__(L=2)
        self.b = b

    def __call__(self, x):
        y = x - self.b
        return y.dot(y)

    def gradient(self, x, out=None):
        return x.sapyb(2, self.b, -2, out=out)


class IndicatorBox(Function):
    """0 where x >= lower, and infinity elsewhere."""

    def __init__(self, lower):
        super().__init__()
        self.lower = lower

    def __call__(self, x):
        return 0.0 if (x.array >= self.lower).all() else np.inf

    def proximal(self, x, tau, out=None):
        out = x.copy() if out is None else out
        out.fill(np.maximum(x.array, self.lower))
        return out


class MatrixOperator:
    """A matrix on flattened containers."""

    linear = True

    def __init__(self, matrix, domain, data):
        self.matrix, self.domain, self.range = matrix.astype(np.float32), domain, data

    def domain_geometry(self):
        return self.domain

    def range_geometry(self):
        return self.range

    def is_linear(self):
        return self.linear

    def norm(self):
        return float(np.linalg.norm(self.matrix, 2))

    def direct(self, x, out=None):
        return self._fill(self.matrix @ x.array.ravel(), self.range, out)

    def adjoint(self, y, out=None):
        return self._fill(self.matrix.T @ y.array.ravel(), self.domain, out)

    @staticmethod
    def _fill(values, geometry, out):
        out = geometry.allocate(None) if out is None else out
        out.fill(values.reshape(geometry.shape))
        return out


class BufferedOperator(MatrixOperator):
    """Without ``out``, its results are one and the same container, as nothing forbids."""

    def direct(self, x, out=None):
        self.result = getattr(self, "result", None) or self.range.allocate(0)
        return super().direct(x, self.result if out is None else out)


class SilentOperator(MatrixOperator):
    """Returns nothing if ``out`` is given, as older operators of CIL do."""

    def direct(self, x, out=None):
        found = super().direct(x, out)
        return found if out is None else None

    def adjoint(self, y, out=None):
        found = super().adjoint(y, out)
        return found if out is None else None


def fista(initial, f, g, iterations, step=None):
    """CIL's order of calls: a gradient step in place, proximal into x, the momentum into y.

    Returns the image and the objectives f(x) + g(x), that of the start included.
    """
    step = 1.0 / f.L if step is None else step
    y, x, old, slope = (initial.copy() for _ in range(4))
    t, values = 1.0, [f(old) + g(old)]
    for _ in range(iterations):
        f.gradient(y, out=slope)
        y.sapyb(1.0, slope, -step, out=y)
        g.proximal(y, step, out=x)
        t, before = 0.5 * (1 + np.sqrt(1 + 4 * t**2)), t
        x.subtract(old, out=y)
        y.sapyb((before - 1) / t, x, 1.0, out=y)
        old, x = x, old
        values.append(f(old) + g(old))
    return old, values


class FISTA:
    """The algorithm as an object."""

    def __init__(self, initial, f, g):
        self.solution, self.f, self.g = initial, f, g

    def run(self, iterations):
        self.solution, self.objective = fista(self.solution, self.f, self.g, iterations)


def projections(image, data):
    """Sums over rows and columns, in place of a ray transform."""
    height, width = image.shape[-2:]
    rows, columns = np.kron(np.eye(height), np.ones(width)), np.tile(np.eye(width), height)
    return MatrixOperator(np.concatenate([rows, columns]), image, data)


def install(monkeypatch):
    """Make the modules importable that the adapter and the documentation name."""
    functions = {"Function": Function, "LeastSquares": LeastSquares}
    modules = {
        "cil": {}, "cil.optimisation": {}, "cil.optimisation.functions": functions,
        "cil.optimisation.algorithms": {"FISTA": FISTA}, "cil.plugins": {},
        "cil.plugins.astra": {}, "cil.plugins.astra.operators": {"ProjectionOperator": projections},
    }  # fmt: skip
    for name, contents in modules.items():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(contents)
    monkeypatch.delitem(sys.modules, "convexlift.cil", raising=False)
