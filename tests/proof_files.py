"""Proof files written by hand, from a problem, an image and dual variables, as the format says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import parts
import torch
import zoo
from safetensors.numpy import save_file

import convexlift as cl
from convexlift.models.store import describe
from convexlift.problems.certificate import best_bounds
from convexlift.tensors import Blocks, choose_images

Arrays = dict[str, np.ndarray]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def operator_description(operator: cl.LinearOperator, arrays: Arrays) -> dict[str, Any]:
    """The operator as JSON; its tensors go into ``arrays``."""

    def keep(field: str, values: Any) -> str:
        name = f"operator.{len(arrays)}.{field}"
        arrays[name] = values.numpy() if isinstance(values, torch.Tensor) else values
        return name

    if isinstance(operator, cl.Identity):
        return {"Identity": {}}
    if isinstance(operator, cl.Scaled):
        inner = operator_description(operator.operator, arrays)
        return {"Scaled": {"factor": operator.factor, "operator": inner}}
    if isinstance(operator, cl.Composition):
        return {"Composition": {"factors": [operator_description(f, arrays)
                                            for f in operator.factors]}}  # fmt: skip
    if isinstance(operator, cl.Sum):
        return {"Sum": {"terms": [operator_description(t, arrays) for t in operator.terms]}}
    if isinstance(operator, cl.Blur):
        kernel = keep("kernel", operator.kernel)
        return {"Blur": {"kernel": kernel, "boundary": operator.boundary}}
    if isinstance(operator, cl.MRI):
        mask, maps = keep("mask", operator.mask), keep("maps", operator.maps)
        return {"MRI": {"mask": mask, "maps": maps, "channels": operator.channels}}
    if isinstance(operator, cl.ParallelBeam | cl.FanBeam):
        grid = operator.grid
        content = {
            "image_size": [grid.height, grid.width],
            "pixel_size": [grid.pixel_height, grid.pixel_width],
            "angles": keep("angles", operator.exact_angles),
            "bins": keep("bins", operator.bins),
        }
        if isinstance(operator, cl.FanBeam):
            content["source_distance"] = operator.source_distance
            content["detector_distance"] = operator.detector_distance
            content["detector"] = operator.detector
        return {type(operator).__name__: content}
    return {"Diagonal": {"values": keep("values", operator.diagonal)}}


def statement(problem: cl.VariationalProblem) -> tuple[dict[str, Any], Arrays]:
    """The problem as JSON and arrays."""
    arrays: Arrays = {"y": problem.fidelity.y.numpy()}
    fidelity = problem.fidelity
    options: dict[str, Any] = {}
    if isinstance(fidelity, cl.L1):
        options = {"scale": fidelity.scale}
    if isinstance(fidelity, cl.KullbackLeibler):
        arrays["fidelity.background"] = fidelity.background.numpy()
    if isinstance(fidelity, cl.WeightedL2):
        arrays["fidelity.weights"] = fidelity.weights.numpy()
    for name, tensor in problem.regularizer.state_dict().items():
        arrays[f"network.{name}"] = tensor.numpy()
    box = [None if np.isinf(end) else end for end in (problem.bounds.lower, problem.bounds.upper)]
    described = {
        "image_shape": list(problem.image_shape),
        "weight": problem.weight,
        "box": box,
        "fidelity": {type(fidelity).__name__: options},
        "operator": operator_description(problem.operator, arrays),
        "network": describe(problem.regularizer),
    }
    return described, arrays


def complete(head: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The description with all its digests, made anew."""
    sums = {
        name: digest(f"{a.dtype} {list(a.shape)} ".encode() + a.tobytes())
        for name, a in arrays.items()
    }
    tensors = {name: sums[name] for name in sums if name.startswith("network.")}
    of_network = json.dumps(
        [head["problem"]["network"], tensors], sort_keys=True, separators=(",", ":")
    )
    head = {**head, "sha256": sums, "network_sha256": digest(of_network.encode())}
    return sealed(head)


def sealed(head: dict[str, Any]) -> dict[str, Any]:
    """The description with its digest."""
    rest = {name: value for name, value in head.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "digest": digest(text.encode())}


def store(path: Path, head: Any, arrays: Arrays) -> Path:
    """Write the file, whatever is in it."""
    text = head if isinstance(head, str) else json.dumps(head)
    contiguous = {name: np.array(a, order="C") for name, a in arrays.items()}
    save_file(contiguous, path, metadata={"convexlift_proof": text})
    return path


@dataclass(frozen=True)
class Evidence:
    """What the package's certificate rests on: image, dual variables, mixture, and both bounds."""

    x: torch.Tensor
    duals: Blocks
    theta: torch.Tensor
    objective: torch.Tensor
    lower_bound: torch.Tensor
    guarantee: tuple[cl.Guarantee, ...]
    radius: float = 1.0


def evidence(
    problem: cl.VariationalProblem, iterations: int = 30, x: torch.Tensor | None = None
) -> Evidence:
    """A short solve, and the package's best bound with its witness; local where none is global."""
    stop = cl.StopWhen(gap=None, max_iterations=iterations, check_every=iterations)
    solution = cl.solve(problem, stop=stop)
    with torch.no_grad():
        at = problem.evaluate(solution.x if x is None else x)
        bounds = best_bounds(problem, at, solution.duals, tangent=True)
    near = bounds.everywhere.gap.isinf()
    best = choose_images(near, bounds.near, bounds.everywhere)
    guarantee = tuple(
        cl.Guarantee.WITHIN_RADIUS if local else cl.Guarantee.GLOBAL for local in near.tolist()
    )
    theta = torch.where(best.data.theta < 1, best.data.theta * (1 - 1e-11), best.data.theta)
    lower = at.objective - best.gap
    return Evidence(at.x, best.witness, theta, at.objective, lower, guarantee)


def contents(
    problem: cl.VariationalProblem, known: Evidence, slack: float = 1e-9
) -> tuple[dict[str, Any], Arrays]:
    """Description and arrays of a proof, with claims worse than the evidence by ``slack``."""
    described, arrays = statement(problem)
    count = len(problem.network.layers)
    arrays["x"] = known.x.numpy()
    for i in range(1, count + 1):
        arrays[f"dual.{i}"] = known.duals[f"v{i}" if i == count else f"v{i},1"].numpy()
    if problem.operator.diagonal is None:
        arrays["dual.data"] = known.duals["v0"].numpy()
    arrays["theta"] = known.theta.numpy()
    objective, bound = known.objective.tolist(), known.lower_bound.tolist()
    claims = [
        {
            "objective": above + slack * abs(above),
            "lower_bound": below - slack * abs(above),
            "gap": (above - below) / abs(above) + 3 * slack,
            "guarantee": guarantee.name,
        }
        for above, below, guarantee in zip(objective, bound, known.guarantee, strict=True)
    ]
    head = {
        "format": 1,
        "made_by": {"convexlift": cl.__version__, "torch": "2", "date": "2026-01-01T00:00:00Z"},
        "problem": described,
        "claims": claims,
        "radius": known.radius,
    }
    return complete(head, arrays), arrays


def write(path: Path, problem: cl.VariationalProblem, known: Evidence) -> Path:
    """The file of a proof."""
    return store(path, *contents(problem, known))


def kernel() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand((3, 5), generator=generator) / 15  # no symmetry


MASK = (torch.arange(zoo.SIZE**2).reshape(zoo.SIZE, zoo.SIZE) % 5 > 0).to(torch.float64)
OPERATORS = {
    name: lambda make=make: make((1, zoo.SIZE, zoo.SIZE)) for name, make in parts.OPERATORS.items()
}


def behind(
    operator: cl.LinearOperator, box: Any, fidelity: Any = cl.SquaredL2, batch: int = 1
) -> cl.VariationalProblem:
    """Noisy data of an operator, with a smooth network."""
    clean = zoo.clean_images(batch)
    data = operator(clean)
    noise = torch.randn(data.shape, generator=torch.Generator().manual_seed(1))
    return cl.VariationalProblem(
        fidelity=fidelity(data + 0.05 * noise),
        operator=operator,
        regularizer=zoo.network("skips", cl.SmoothedLeakyReLU(0.2, 0.1)),
        weight=0.05,
        box=box,
    )
