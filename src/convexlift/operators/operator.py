"""Operators from two functions, or from a matrix."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape

Map = Callable[[Tensor], Tensor]


class Operator(LinearOperator):
    """A x = forward(x) and A* y = adjoint(y); or A x = M x for a matrix M.

    Examined when it is made, on random images in double precision, which certificates are computed
    in: shapes, that the images of a batch do not mix, linearity, and <A x, y> = <x, A* y>. What
    fails is a ValueError. Write a subclass of ``LinearOperator`` instead for proof files, or to
    state more (``CONTRIBUTING.md``).

    Args:
        forward: a function of a batch (B, *input_shape), made of operations of PyTorch; or a
            matrix (m, n), as a tensor, an array, or a sparse matrix of SciPy. Its rows and columns
            are the entries of output and input in row-major order.
        adjoint: a function of a batch (B, *output_shape); not for a matrix, which has one.
        input_shape: the shape of one image: (channels, height, width).
        output_shape: the shape of one datum; found by ``forward``, (m,) for a matrix.
        norm: ||A||, or an upper bound on it, if you know one; estimated otherwise.
        device: for the examination.
    """

    def __init__(
        self,
        forward: Map | Any,
        adjoint: Map | None = None,
        *,
        input_shape: Shape,
        output_shape: Shape | None = None,
        norm: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.input_shape = tuple(map(int, input_shape))
        self.matrix: Tensor | SparseMatrix | None = None
        self._target: Shape = ()
        if norm is not None and not 0 < norm < math.inf:
            raise ValueError(f"norm must be a positive number, got {norm}; leave it out")
        if callable(forward):
            if not callable(adjoint):
                raise ValueError(
                    "an operator from a function needs its adjoint too: Operator(forward, adjoint, "
                    "input_shape=...), with <A x, y> = <x, A* y>; or give the matrix of A"
                )
            self._functions: tuple[Map, Map] | None = (forward, adjoint)
            self._target = self._probe(output_shape, torch.device(device))
        else:
            if adjoint is not None:
                raise ValueError("the adjoint of a matrix is its transpose; leave out adjoint")
            self._functions = None
            self.matrix = _matrix(forward)
            self._target = self._matrix_shape(output_shape)
        self._known_norm = norm
        if self._functions is not None:
            self._examine(torch.device(device))

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        if self._functions:
            return self._functions[0](x)
        assert self.matrix is not None
        return (x.flatten(1) @ self.matrix.T).reshape(len(x), *self._target)

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        if self._functions:
            return self._functions[1](y)
        assert self.matrix is not None
        assert self.input_shape is not None
        return (y.flatten(1) @ self.matrix).reshape(len(y), *self.input_shape)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The shape of one datum."""
        return self._target

    def _norm(self, shape: Shape) -> float:
        return super()._norm(shape) if self._known_norm is None else self._known_norm

    def __repr__(self) -> str:
        kind = "matrix" if self._functions is None else "functions"
        assert self.input_shape is not None
        shapes = (" x ".join(map(str, shape)) for shape in (self.input_shape, self._target))
        return f"Operator({kind}, {' -> '.join(shapes)})"

    def _matrix_shape(self, output_shape: Shape | None) -> Shape:
        assert self.matrix is not None
        rows, columns = self.matrix.shape
        target = (rows,) if output_shape is None else tuple(map(int, output_shape))
        for name, shape, count in (
            ("input_shape", self.input_shape, columns),
            ("output_shape", target, rows),
        ):
            if math.prod(shape or ()) != count:
                part = "columns" if name == "input_shape" else "rows"
                raise ValueError(
                    f"a matrix of {rows} x {columns} needs an {name} of {count} entries, as many "
                    f"as it has {part}; got {name}={shape}"
                )
        return target

    def _probe(self, output_shape: Shape | None, device: torch.device) -> Shape:
        """The shape of A 0, which must be the one that was stated."""
        found = tuple(self._called("forward", self._image(0, device)).shape[1:])
        if output_shape is not None and found != tuple(output_shape):
            raise ValueError(
                f"forward(x) has the shape {found} for one image, but output_shape says "
                f"{tuple(output_shape)}"
            )
        return found

    def _image(self, seed: int, device: torch.device, shape: Shape | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        size = (2, *(self.input_shape or ())) if shape is None else (2, *shape)
        return torch.randn(size, generator=generator, dtype=torch.float64).to(device)

    def _called(self, name: str, batch: Tensor) -> Tensor:
        """The result of one of the functions, which must be a batch in double precision."""
        assert self._functions is not None
        function = self._functions[name == "adjoint"]
        try:
            with torch.no_grad():
                result = function(batch)
        except Exception as error:
            raise ValueError(
                f"{name} failed on a batch of the shape {tuple(batch.shape)} in double precision: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(result, Tensor):
            raise ValueError(f"{name} must return a torch.Tensor, got {type(result).__name__}")
        if result.dtype != batch.dtype:
            raise ValueError(
                f"{name} must keep the precision of its input: it made {result.dtype} of "
                f"{batch.dtype}. Convert what it multiplies with, as in kernel.to(x)"
            )
        if result.ndim < 1 or len(result) != len(batch):
            raise ValueError(
                f"{name} must map a batch to a batch: (B, ...) with B = {len(batch)} became "
                f"{tuple(result.shape)}"
            )
        return result

    def _examine(self, device: torch.device) -> None:
        x, other = self._image(1, device), self._image(2, device)
        y = self._image(3, device, self._target)
        Ax, Aty = self._called("forward", x), self._called("adjoint", y)
        if Aty.shape != x.shape:
            raise ValueError(
                f"adjoint(y) has the shape {tuple(Aty.shape[1:])} for one datum, but input_shape "
                f"says {self.input_shape}"
            )
        scale = float(Ax.norm()) + torch.finfo(x.dtype).tiny
        combined = self._called("forward", 2 * x - 3 * other)
        error = (combined - (2 * Ax - 3 * self._called("forward", other))).norm() / scale
        if not error <= 1e-9:
            raise ValueError(
                f"forward is not linear: A(2x - 3x') and 2Ax - 3Ax' differ by {float(error):.1e}, "
                "relative to Ax"
            )
        mixed = self._called("forward", torch.cat([x[:1], other[1:]]))
        if not float((mixed[0] - Ax[0]).norm()) <= 1e-9 * scale:
            raise ValueError(
                "forward mixes the images of a batch: the first result depends on the second image"
            )
        sides = float((Ax * y).sum()), float((x * Aty).sum())
        error = abs(sides[0] - sides[1]) / (scale * float(y.norm()))
        if not error <= 1e-9:
            raise ValueError(
                "adjoint is not the adjoint of forward: <A x, y> = {:.6g}, but <x, A* y> = {:.6g} "
                "for random x and y".format(*sides)
            )


class SparseMatrix:
    """A sparse matrix M for products y @ M; ``T`` is its transpose.

    Not a tensor: torch can neither copy its sparse matrices nor change their precision in place.
    """

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]):
        self.rows, self.columns, self.values, self.shape = rows, columns, values, shape
        self._made: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @cached_property
    def T(self) -> SparseMatrix:
        """The transpose."""
        transpose = SparseMatrix(self.columns, self.rows, self.values, self.shape[::-1])
        transpose.__dict__["T"] = self
        return transpose

    def __rmatmul__(self, vectors: Tensor) -> Tensor:
        return (self._transposed(vectors.dtype, vectors.device) @ vectors.T).T

    def _transposed(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """M transposed, in compressed rows."""
        if (dtype, device) not in self._made:
            places = torch.stack([self.columns, self.rows])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls its sparse matrices beta
                made = torch.sparse_coo_tensor(
                    places, self.values.to(dtype), self.shape[::-1], check_invariants=True
                )
                self._made[dtype, device] = made.coalesce().to_sparse_csr().to(device)
        return self._made[dtype, device]


def _matrix(given: Any) -> Tensor | SparseMatrix:
    """A dense tensor, or a sparse matrix."""
    sparse = None
    if hasattr(given, "tocoo"):
        coo = given.tocoo()
        rows, columns, values = (
            torch.as_tensor(np.asarray(part)) for part in (coo.row, coo.col, coo.data)
        )
        sparse = SparseMatrix(rows.long(), columns.long(), values, tuple(coo.shape))
    elif isinstance(given, Tensor) and given.layout is not torch.strided:
        coo = given.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        rows, columns = coo.indices()
        sparse = SparseMatrix(rows, columns, coo.values(), tuple(coo.shape))
    if sparse is None:
        try:
            matrix = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                "an operator is made of two functions, Operator(forward, adjoint, "
                f"input_shape=...), or of a matrix; got {type(given).__name__}"
            ) from None
        if not matrix.is_floating_point():
            matrix = matrix.to(torch.get_default_dtype())
    shape, values = (sparse.shape, sparse.values) if sparse else (matrix.shape, matrix)
    if len(shape) != 2:
        raise ValueError(f"a matrix has two dimensions, got the shape {tuple(shape)}")
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the matrix has entries that are infinite or NaN")
    return sparse or matrix
