"""A stand-in for CIL 26 with the methods that ``convexlift.cil`` uses, by their documentation.

CIL itself is installed with conda only, which tests do not need. Containers compute in place with
``out=``, as CIL's algorithms do.
"""

from __future__ import annotations

import sys
import types

import numpy as np


class Geometry:
    def __init__(self, *shape):
        self.shape = shape

    def allocate(self, value=0):
        return Container(np.full(self.shape, value, dtype=np.float32), self)


class Container:
    """The arithmetic of a CIL ``DataContainer``."""

    def __init__(self, array, geometry):
        self.array, self.geometry = array, geometry

    @property
    def shape(self):
        return self.array.shape

    def as_array(self):
        return self.array

    def fill(self, array):
        np.copyto(self.array, array)

    def copy(self):
        return Container(self.array.copy(), self.geometry)

    def sapyb(self, a, y, b, out):
        """a self + b y."""
        out.array[...] = a * self.array + b * y.array

    def divide(self, number, out):
        out.array[...] = self.array / number

    def multiply(self, number, out):
        out.array[...] = self.array * number


class Function:
    """The base class: Moreau's identity and multiples, as CIL states them."""

    def __init__(self, L=None):
        self.L = L

    def proximal_conjugate(self, x, tau, out=None):
        x.divide(tau, out=x)
        value = self.proximal(x, 1 / tau, out=out)
        x.multiply(tau, out=x)
        value.sapyb(-tau, x, 1.0, out=value)
        return value

    def __rmul__(self, scalar):
        return Scaled(self, scalar)


class Scaled(Function):
    def __init__(self, function, scalar):
        self.function, self.scalar = function, scalar

    def __call__(self, x):
        return self.scalar * self.function(x)

    def gradient(self, x, out=None):
        found = self.function.gradient(x, out=out)
        found.multiply(self.scalar, out=found)
        return found

    def proximal(self, x, tau, out=None):
        return self.function.proximal(x, self.scalar * tau, out=out)

    def convex_conjugate(self, x):
        scaled = x.copy()
        x.divide(self.scalar, out=scaled)
        return self.scalar * self.function.convex_conjugate(scaled)


class LeastSquares(Function):
    """c |A x - b|^2."""

    def __init__(self, A, b, c=0.5):
        super().__init__(L=2 * c * A.norm() ** 2)
        self.A, self.b, self.c = A, b, c

    def __call__(self, x):
        return self.c * float(((self.A.direct(x).array - self.b.array) ** 2).sum())

    def gradient(self, x, out):
        residual = self.A.direct(x)
        residual.array -= self.b.array
        residual.array *= 2 * self.c
        self.A.adjoint(residual, out=out)


class HalfSquared(Function):
    """1/2 |x - b|^2."""

    def __init__(self, b):
        super().__init__(L=1.0)
        self.b = b

    def __call__(self, x):
        return 0.5 * float(((x.array - self.b.array) ** 2).sum())

    def proximal(self, x, tau, out=None):
        out = x.copy() if out is None else out
        out.array[...] = (x.array + tau * self.b.array) / (1 + tau)
        return out

    def convex_conjugate(self, y):
        return float((0.5 * y.array**2 + y.array * self.b.array).sum())


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
        out = geometry.allocate(0) if out is None else out
        out.fill(values.reshape(geometry.shape))
        return out


class BufferedOperator(MatrixOperator):
    """Without ``out``, its results are one and the same container, as nothing forbids."""

    def direct(self, x, out=None):
        self.result = getattr(self, "result", None) or self.range.allocate(0)
        return super().direct(x, self.result if out is None else out)


def fista(initial, f, g, iterations):
    """CIL's order of calls: y - step grad f(y) in place, proximal into x, then the momentum.

    Returns the image and the objectives f(x) + g(x).
    """
    y, x, old, slope = (initial.copy() for _ in range(4))
    t, values = 1.0, []
    for _ in range(iterations):
        f.gradient(y, out=slope)
        y.sapyb(1.0, slope, -1 / f.L, out=y)
        g.proximal(y, 1 / f.L, out=x)
        t, before = 0.5 * (1 + np.sqrt(1 + 4 * t**2)), t
        x.sapyb(1 + (before - 1) / t, old, -(before - 1) / t, out=y)
        values.append(f(x) + g(x))
        old, x = x, old
    return old, values


def pdhg(f, g, operator, iterations, theta=1.0):
    """CIL's order of calls: proximal_conjugate(y_tmp, sigma, out=y), then proximal(x_tmp, out=x).

    Returns the image, and for each iteration the primal objective, the dual one, and the gap.
    """
    tau = sigma = 1 / operator.norm()
    x_old, x, x_tmp = (operator.domain_geometry().allocate(0) for _ in range(3))
    y, y_tmp = (operator.range_geometry().allocate(0) for _ in range(2))
    values = []
    for _ in range(iterations):
        x_old.sapyb(1 + theta, x, -theta, out=x_tmp)
        operator.direct(x_tmp, out=y_tmp)
        y_tmp.sapyb(sigma, y, 1.0, out=y_tmp)
        f.proximal_conjugate(y_tmp, sigma, out=y)
        operator.adjoint(y, out=x_tmp)
        x_tmp.sapyb(-tau, x_old, 1.0, out=x_tmp)
        g.proximal(x_tmp, tau, out=x)
        operator.direct(x, out=y_tmp)
        operator.adjoint(y, out=x_tmp)
        x_tmp.multiply(-1.0, out=x_tmp)
        primal = f(y_tmp) + g(x)
        dual = -(f.convex_conjugate(y) + g.convex_conjugate(x_tmp))
        values.append((primal, dual, primal - dual))
        x_old, x = x, x_old
    return x_old, values


class FISTA:
    """The algorithm as an object."""

    def __init__(self, initial, f, g):
        self.solution, self.f, self.g = initial, f, g

    def run(self, iterations):
        self.solution, self.objective = fista(self.solution, self.f, self.g, iterations)


def projections(image, data):
    """Sums over rows and columns, in place of a ray transform."""
    height, width = image.shape
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
