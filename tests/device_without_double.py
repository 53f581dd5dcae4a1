"""A device that is a CPU without double precision, as Apple's GPUs are: ``python FILE``.

Tensors there are wrapped, run on the CPU, and raise what MPS raises for float64. The device is
registered for the whole process, so tests start this file in one of its own.
"""

from __future__ import annotations

import torch
from problem_cases import made
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import convexlift as cl

KIND = "single"
SOLVED = ("huber", "blur", "rays", "counts", "3 x 3", "pooled, kinks", "biases of pixels")
MOVES = ("aten::_to_copy", "aten::copy_")


class Elsewhere(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=KIND, requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Elsewhere({self.inner})"

    def tolist(self):
        """Which torch has for its own class only."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside, tensors can be made on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def computed(func, args, kwargs):
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    there = [t for t in tensors if isinstance(t, Elsewhere)]
    mixed = there and any(t.ndim > 0 and not isinstance(t, Elsewhere) for t in tensors)
    if mixed and func._schema.name not in MOVES:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Elsewhere) else t, (args, kwargs))
    target = KIND if there else "cpu"
    if kwargs.get("device") is not None:
        target, kwargs = torch.device(kwargs["device"]).type, {**kwargs, "device": "cpu"}

    def placed(value):
        if not isinstance(value, torch.Tensor) or target != KIND:
            return value
        if value.dtype == torch.float64:
            raise TypeError(f"Cannot convert a tensor to float64 on this device ({func})")
        return Elsewhere(value)

    found = func(*args, **kwargs)
    if func._schema.name.endswith("_"):  # in place
        return there[0] if there else found
    return tree_map(placed, found)


def register() -> torch.library.Library:
    """The device, and what ``torch.as_tensor(number, device=...)`` calls without the mode."""
    _setup_privateuseone_for_python_backend(KIND)
    library = torch.library.Library("aten", "IMPL")

    def empty(size, stride, *, dtype=None, **_):
        return Elsewhere(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy(target, source, non_blocking=False):
        target.inner.copy_(source)
        return target

    library.impl("empty_strided", empty, "PrivateUse1")
    library.impl("copy_", copy, "PrivateUse1")
    return library


def solved(name: str) -> None:
    torch.set_default_dtype(torch.float64)  # in which cases are stated, on the CPU
    problem = made(name, torch.float32, alone=name == "biases of pixels")
    torch.set_default_dtype(torch.float32)
    problem = problem.to(device=KIND)
    solution = cl.solve(problem)
    assert solution.x.device.type == KIND, solution.x.device
    assert (solution.gap <= 1e-3).all()
    assert solution.objective.dtype is torch.float64
    assert torch.allclose(problem.objective(solution.x), solution.objective, rtol=1e-5)
    certificate = cl.certify(problem, solution.x, solution.duals)
    assert (certificate.gap <= 1.01e-3).all()
    again = cl.solve(problem, start=solution.state, stop=cl.StopWhen(gap=1e-4))
    assert (again.iterations <= solution.iterations + 200).all()


def differentiated() -> None:
    y = torch.rand(1, 1, 8, 8).to(KIND).requires_grad_()
    net = cl.networks.ridge(channels=3, kernel=3, smoothing=0.1).to(KIND)
    weight = torch.tensor(0.2).to(KIND).requires_grad_()
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=weight)
    x = cl.solve(problem, differentiable=True).x
    assert x.device.type == KIND
    waiting, reached = [x.grad_fn], set()  # the engine has no queue for this device
    while waiting:
        node = waiting.pop()
        reached.add(getattr(node, "variable", None))
        waiting += [following for following, _ in node.next_functions if following is not None]
    assert {id(y), id(weight), id(net.output)} <= {id(each) for each in reached}


if __name__ == "__main__":
    kept = register()
    with Device():
        try:
            torch.zeros(1).to(KIND).double()
        except TypeError:
            print("no double precision")
        for name in SOLVED:
            solved(name)
            print(name)
        differentiated()
        print("differentiated")
