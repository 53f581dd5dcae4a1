"""Proof files: an image with the data, network and dual variables that prove its lower bound.

One safetensors file holds the image, the data, the network, the dual variables and, as JSON in its
header, the problem and the claims. Nothing in it is ever executed. ``proof_checker`` confirms it
without any other module of this package; docs/proofs.md describes the format.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.functionals.fidelity import Fidelity
from convexlift.json_values import finite
from convexlift.models.store import describe
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.parts import ProblemPart
from convexlift.problems.claims import Claim, Guarantee
from convexlift.problems.network_duals import dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import foreign_parts, is_own

FORMAT = 1
"""The version of the format."""
METADATA = "convexlift_proof"
"""The key of the JSON text in the file header."""

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False)
class Proof:
    """A problem and the claims about its images, ready to be saved.

    ``Proof(problem, certificate)`` makes one from ``cl.certify``; ``solution.proof`` belongs to a
    solve.
    """

    problem: VariationalProblem
    claim: Claim

    def save(self, path: str | Path) -> Path:
        """Write the file atomically; returns its path.

        Raises ValueError if there is no bound to prove, or if a part of the problem is not one of
        the library's own classes, which the checker requires.
        """
        arrays, sheet = self._contents()
        target = Path(path)
        if target.is_dir():
            raise ValueError(
                f"{target} is a folder; name a file in it, such as {target / 'x.proof'}"
            )
        with atomic_path(target) as part:
            part.write_bytes(sealed(sheet, arrays))
        return target

    def _contents(self) -> tuple[Arrays, dict[str, Any]]:
        problem, claim = self.problem, self.claim
        for i, guarantee in enumerate(claim.guarantee):
            if guarantee is Guarantee.NONE:
                raise ValueError(f"image {i} has no lower bound, so there is nothing to prove")
        if not claim.duals:
            raise ValueError(
                "the dual variables of this solution were not kept (they are not for images solved "
                "in tiles), so there is no proof file; its claims hold nevertheless"
            )
        arrays: Arrays = {"x": _array(claim.x), "theta": _array(claim.theta)}
        arrays["y"] = _array(problem.fidelity.y)
        count = len(problem.network.layers)
        for i in range(1, count + 1):
            arrays[f"dual.{i}"] = _array(claim.duals[dual_names(i, count)[0]])
        if claim.data_dual is not None:
            arrays["dual.data"] = _array(claim.data_dual)
        for name, tensor in problem.regularizer.state_dict().items():
            arrays[f"network.{name}"] = _array(tensor)
        sheet: dict[str, Any] = {
            "format": FORMAT,
            "made_by": _made_by(),
            "problem": {
                "image_shape": list(problem.image_shape),
                "weight": float(problem.weight),
                "box": [finite(problem.bounds.lower), finite(problem.bounds.upper)],
                "fidelity": _fidelity(problem.fidelity, arrays),
                "operator": _operator(problem.operator, arrays),
                "network": _network(problem.regularizer),
            },
            "claims": [
                {
                    "objective": float(claim.objective[i]),
                    "lower_bound": float(claim.lower_bound[i]),
                    "gap": finite(float(claim.gap[i])),  # infinite if the objective is 0
                    "guarantee": guarantee.name,
                }
                for i, guarantee in enumerate(claim.guarantee)
            ],
            "radius": claim.radius,
        }
        return arrays, sheet


def sealed(sheet: dict[str, Any], arrays: Arrays) -> bytes:
    """The content of a proof file: the arrays, and the sheet with digests of everything."""
    sums = {name: _digest(array) for name, array in arrays.items()}
    tensors = {name: digest for name, digest in sums.items() if name.startswith("network.")}
    known = {name: value for name, value in sheet.items() if name != "digest"}
    known |= {
        "sha256": sums,
        "network_sha256": _json_digest([sheet["problem"]["network"], tensors]),
    }
    text = json.dumps({**known, "digest": _json_digest(known)})
    return safetensors.numpy.save(arrays, metadata={METADATA: text})


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.detach().cpu().numpy(), order="C")


def _digest(array: np.ndarray[Any, Any]) -> str:
    header = f"{array.dtype} {list(array.shape)} ".encode()
    return hashlib.sha256(header + array.tobytes()).hexdigest()


def _json_digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _made_by() -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    version = sys.modules[__package__ or "convexlift"].__version__  # set after all imports
    return {"convexlift": version, "torch": str(torch.__version__), "date": now}


def _network(network: InputConvexNetwork) -> dict[str, Any]:
    """The layers, if all activations and maps are the library's own."""
    for module in network.modules():
        if isinstance(module, ProblemPart) and not is_own(module):
            raise ValueError(_unknown("map", module))
        for part in foreign_parts(getattr(module, "activation", None)):
            raise ValueError(_unknown("activation", part))
    return describe(network)


def _fidelity(fidelity: Fidelity, arrays: Arrays) -> dict[str, Any]:
    """Name and numbers of a fidelity; tensors other than the data go to ``arrays``."""
    numbers = {}
    for name, value in _arguments(fidelity, "fidelity").items():
        if not isinstance(value, Tensor):
            numbers[name] = value
        elif name != "y":
            arrays[f"fidelity.{name}"] = _array(value)
    return {str(fidelity.part_name): numbers}


def _operator(operator: LinearOperator, arrays: Arrays) -> dict[str, Any]:
    """The tree of an operator; its tensors go to ``arrays`` under names used in the tree."""

    def written(name: str, value: Any) -> Any:
        if isinstance(value, LinearOperator):
            return _operator(value, arrays)
        if isinstance(value, list | tuple):
            return [written(name, item) for item in value]
        if isinstance(value, Tensor | np.ndarray):
            place = f"operator.{sum(key.startswith('operator.') for key in arrays)}.{name}"
            arrays[place] = _array(torch.as_tensor(value))
            return place
        return value

    arguments = _arguments(operator, "operator").items()
    return {str(operator.part_name): {name: written(name, value) for name, value in arguments}}


def _arguments(part: ProblemPart, what: str) -> dict[str, Any]:
    """The arguments of a part of the library; the checker knows no others."""
    if part.part_name is None or not is_own(part):
        raise ValueError(_unknown(what, part))
    return part.arguments()


def _unknown(what: str, part: object) -> str:
    return (
        f"the {what} {type(part).__name__} is not the library's own, so a proof file cannot "
        "describe it; the claims of the solution hold nevertheless"
    )
