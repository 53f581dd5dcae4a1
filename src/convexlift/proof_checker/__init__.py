"""An independent checker of proof files: no image has an objective below the bound in the file.

    python -m convexlift.proof_checker FILE...

It imports nothing of the rest of convexlift. A copy of this folder runs alone, with NumPy and
safetensors: ``python -m proof_checker FILE...`` beside it.

A file states  J(x) = D(A x, y) + weight R(x)  over a box, with R(x) = <w, z_L>,
a_i = V_i x + sum_j W_ij z_j + b_i and z_i = h_i(a_i) (+ z_{i-1}). Its dual variables p_i give
slopes s_i in dom h_i*. Backwards from t_L = weight w, with p_i = s_i t_i, t_j += W_ij^T p_i and
c += V_i^T p_i,

    weight R(x') >= <c, x'> + sum_i <p_i, b_i> - <t_i, h_i*(s_i)>        for every image x',

as W, w >= 0 and h_2, ..., h_L are nondecreasing, which is checked. The conjugate of the data term
bounds the rest, inf D(A x') + <c, x'>, pixel by pixel. Every number is a ``Ball``: a float64 value
and a bound on its rounding error. A ray transform is the float64 matrix that is built here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike

import numpy as np

from .balls import TINY, Ball, ProofRejected, require
from .bounds import lower_bound, objective
from .files import ProofFile, fields
from .problems import read_problem

__all__ = ["ProofRejected", "Verdict", "verify"]

TOLERANCE = 1e-6
"""How much less than its claims a file may prove, relative to the objective."""


@dataclass(frozen=True)
class Verdict:
    """What a file proves about one of its images, with rounding on the safe side.

    Attributes:
        objective: the objective of x is at most this.
        lower_bound: no image has a lower objective, in the sense of ``guarantee``.
        gap: (objective - lower_bound) / |objective|.
        guarantee: ``GLOBAL``, or ``WITHIN_RADIUS`` of x on pixels that nothing else bounds.
        radius: of the latter.
        made_by: programs with their versions, as the file says.
        network_sha256: identifies the regularizer.
    """

    objective: float
    lower_bound: float
    gap: float
    guarantee: str
    radius: float
    made_by: dict[str, str]
    network_sha256: str

    def __str__(self) -> str:
        near = f"within {self.radius:g} of x on pixels that neither data nor box bound"
        scope = "in the box" if self.guarantee == "GLOBAL" else near
        makers = ", ".join(f"{name} {version}" for name, version in self.made_by.items())
        return (
            f"objective {self.objective!r}; no image {scope} is below {self.lower_bound!r} (gap "
            f"{self.gap:.3g}); network {self.network_sha256[:12]}; made by {makers}"
        )


def verify(path: str | PathLike[str]) -> tuple[Verdict, ...]:
    """Check a proof file: what it proves, for each of its images.

    Raises ProofRejected, with the file's name and the reason, if it is damaged or proves less
    than it claims, and OSError if it cannot be read.
    """
    try:
        with np.errstate(all="ignore"):  # numbers that are not finite are rejected
            file = ProofFile(path)
            problem = read_problem(file)
            bound, near = lower_bound(problem)
            return _verdicts(file, objective(problem), bound, near.tolist())
    except OSError:
        raise
    except ProofRejected as error:
        raise ProofRejected(f"{path}: {error}") from None
    except Exception as error:  # hostile files must not raise anything else
        raise ProofRejected(f"{path}: it is malformed ({type(error).__name__}: {error})") from None


def _verdicts(file: ProofFile, J: Ball, bound: Ball, near: list[bool]) -> tuple[Verdict, ...]:
    """The proven numbers, if they bear out the claims."""
    listed = isinstance(file.claims, list) and len(file.claims) == file.batch
    require(listed, "claims must be a list with one entry for each image")
    found = []
    for i, claim in enumerate(file.claims):
        place = f"claims[{i}]"
        names = "objective lower_bound gap guarantee"
        above, below, gap, guarantee = fields(claim, place, names)
        known = guarantee in ("GLOBAL", "WITHIN_RADIUS")
        require(known, f"{place}.guarantee must be GLOBAL or WITHIN_RADIUS")
        holds = not near[i] or guarantee == "WITHIN_RADIUS"
        require(holds, f"{place}.guarantee is GLOBAL, but a pixel is bounded near x only")
        (least, high), (low, most) = _ends(J, i), _ends(bound, i)
        allowed = TOLERANCE * abs(high) + TINY
        fine = least <= above and high <= above + allowed
        require(fine, f"{place}.objective is {above!r}, but at most {high!r} is proved")
        fine = below <= most and below - allowed <= low
        require(fine, f"{place}.lower_bound is {below!r}, but {low!r} is proved")
        relative = math.nextafter((high - low) / abs(high), math.inf) if high else math.inf
        relative = 0.0 if high == low else relative
        require(
            relative <= gap + 4 * TOLERANCE, f"{place}.gap is {gap!r}, but {relative!r} is proved"
        )
        scope = "WITHIN_RADIUS" if near[i] else "GLOBAL"
        verdict = Verdict(
            high, low, relative, scope, file.radius, file.made_by, file.network_sha256
        )
        found.append(verdict)
    return tuple(found)


def _ends(ball: Ball, i: int) -> tuple[float, float]:
    """Floats below and above number i."""
    value, error = float(ball.value[i]), float(np.broadcast_to(ball.error, ball.value.shape)[i])
    return math.nextafter(value - error, -math.inf), math.nextafter(value + error, math.inf)
