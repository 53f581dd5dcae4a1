"""The public names, their documentation, and the examples people copy."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import convexlift as cl

ROOT = Path(__file__).parent.parent
NAMES = [
    name for name in dir(cl)
    if not name.startswith("_") and not inspect.ismodule(getattr(cl, name))
]  # fmt: skip


def test_the_names_others_rely_on():
    promised = {
        *("InputConvexNetwork", "ConvexLayer", "VariationalProblem", "StopWhen", "Certificate"),
        *("solve", "certify", "lift", "check_operator", "check_activation", "check_functional"),
        *("PDHG", "PaperSteps", "Subgradient", "NMAPG", "LBFGS", "Solution", "Status"),
        *("L1", "SquaredL2", "WeightedL2", "KullbackLeibler", "Identity", "Mask", "Blur"),
        *("line_integrals", "LineIntegrals", "Counts", "expected_intensity"),
        *("ParallelBeam", "FanBeam", "fbp"),
        *("load", "save", "ModelCard", "GroupNorm", "TotalVariation"),
    }
    assert promised <= set(NAMES)
    assert {"baseline", "deep", "convolutional", "TotalVariation"} <= set(dir(cl.networks))
    assert {"names", "card", "load", "save", "ModelCard"} <= set(dir(cl.models))
    assert callable(cl.models.card)
    files = {"read_volume", "write_volume", "read_sinogram", "write_sinogram", "write_png"}
    assert files <= set(cl.scans.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name):
    thing = getattr(cl, name)
    assert (inspect.getdoc(thing) or "").strip()
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if inspect.isfunction(value) and not member.startswith("_"):
                assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


def test_importing_is_light_and_solving_on_a_processor_loads_no_compiler():
    code = (
        "import sys, torch; before = torch.get_default_dtype(); from convexlift import *; "
        "assert solve and torch.get_default_dtype() is before; "
        "heavy = {'matplotlib', 'PIL', 'typer', 'rich', 'scipy', 'cvxpy'} & set(sys.modules); "
        "heavy |= {'pydicom', 'h5py', 'tifffile'} & set(sys.modules); "
        "assert not heavy, heavy; y = SquaredL2(torch.rand(1, 1, 8, 8)); "
        "problem = VariationalProblem(fidelity=y, regularizer=load('photo-any-size'), weight=0.1); "
        "solve(problem); assert not {'triton', 'torch._dynamo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(AttributeError, match=r"no attribute 'slove'. Did you mean 'solve'\?"):
        cl.slove  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        cl.models.xyzzy  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Slove'"):
        from convexlift import Slove  # noqa: F401


@pytest.mark.parametrize(
    "stub", sorted(Path(cl.__file__).parent.rglob("__init__.pyi")), ids=lambda p: p.parent.name
)
def test_no_public_name_is_also_the_name_of_a_module(stub):
    """Importing the module would replace the name by the module."""
    lines = [line for line in stub.read_text().splitlines() if line.startswith("from ")]
    public = {line.split()[-1]: line.split()[1] for line in lines}
    package = ".".join(stub.parent.relative_to(Path(cl.__file__).parent.parent).parts)
    modules = {path.stem for path in stub.parent.iterdir() if path.suffix in ("", ".py")}
    assert {name for name, origin in public.items() if origin != package} & modules == set()


def test_names_are_found_by_tools():
    assert set(cl.__all__) <= set(dir(cl))
    assert cl.__all__ == sorted(set(cl.__all__))
    assert "solve(" in pydoc.plain(pydoc.render_doc(cl))
    assert cl.operators.imaging.Blur is cl.Blur  # modules are attributes, listed or not
    assert pickle.loads(pickle.dumps(cl.LeakyReLU)) is cl.LeakyReLU
    assert pickle.loads(pickle.dumps(cl.StopWhen(gap=0.5))) == cl.StopWhen(gap=0.5)


def test_the_version_is_stated_once():
    assert f"version: {cl.__version__}" in (ROOT / "CITATION.cff").read_text()
