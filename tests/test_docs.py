"""The documentation as a site: what is made from the code, and that nothing is left out."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import markdown
import pages
import pytest

import convexlift as cl
from convexlift.cli.app import COMMANDS, load

DOCS = pages.ROOT / "docs"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(group=None, path: str = "convexlift"):
    inside = {name: load(name) for name in COMMANDS} if group is None else group.commands
    for name, command in inside.items():
        if command.hidden:
            continue
        inner = getattr(command, "commands", None)
        yield from commands(command, f"{path} {name}") if inner else [(f"{path} {name}", command)]


def test_the_command_reference_has_every_command_and_option():
    text = tool("hooks").command_reference()
    assert "<code>INPUTS...</code>" in text
    assert "...." not in text
    found = dict(commands())
    assert {"convexlift demo", "convexlift models", "convexlift train bilevel"} <= set(found)
    for path, command in found.items():
        _, heading, section = text.partition(f"\n\n## {path}\n\n")
        if not heading:  # inside a group
            _, heading, section = text.partition(f"\n\n### {path}\n\n")
        assert heading, path
        section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
        first = " ".join(command.help.split("\n\n")[0].split())
        assert first in " ".join(section.replace("`", "").split())
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else ()
            for name in names:
                assert name in section, (path, name)
        rows = [line for line in section.splitlines() if line.startswith("|")]
        assert all(line.replace("\\|", "").count("|") == 3 for line in rows)


def test_outputs_have_the_same_names_in_all_commands():
    outputs = {
        path: option.opts
        for path, command in commands()
        for option in command.params
        if option.name == "output"
    }
    assert {"convexlift demo", "convexlift reconstruct ct"} <= set(outputs)
    assert all(names == ["--output", "-o"] for names in outputs.values()), outputs


def test_docstrings_with_mathematics_are_no_markup():
    escaped = tool("docstrings").escaped
    text = """<A x, y> = <x, A* y>, see :func:`lift` and ``A* y``.

    min_x  <c, x> + D*(v)

Args:
    weight_of: w >= 0 in <w, z>.
    other: a * b
        and c*, (a_- + b)_+.
"""
    assert (
        escaped(text)
        == r"""&lt;A x, y> = &lt;x, A\* y>, see `lift` and ``A* y``.

    min_x  <c, x> + D*(v)

Args:
    weight_of: w >= 0 in &lt;w, z>.
    other: a \* b
        and c\*, (a\_- + b)\_+.
"""
    )


def test_every_public_name_has_its_place_in_the_reference():
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    documented = {
        name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    }
    modules = {"models", "networks", "scans", "annotations"}
    public = {name for name in vars(cl) if not name.startswith("_")} - {
        name for name, value in vars(cl).items() if isinstance(value, ModuleType)
    }
    assert public - modules <= documented
    for module in (cl.networks, cl.models, cl.scans):
        assert set(module.__all__) - {"ScanGeometry", "WINDOWS"} <= documented


def test_links_to_files_of_the_root_become_links_to_their_pages():
    text = "[a](../CONTRIBUTING.md#how) [b](../../CHANGELOG.md) `../CONTRIBUTING.md` [c](lift.md)"
    expected = "[a](contributing.md#how) [b](../changelog.md) `../CONTRIBUTING.md` [c](lift.md)"
    assert tool("hooks").linked_to_copies(text) == expected


def anchors(page: Path) -> set[str]:
    """Of headings, where the site and code hosts make the same of them: repeated dashes differ."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings]
    return {text.replace(" ", "-") for text in kept if not re.search(r"[ -]{2}", text)}


@pytest.mark.parametrize("name", [*pages.documentation(), "CHANGELOG.md"])
def test_links_work_in_the_repository(name):
    page = pages.ROOT / name
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^()\s]+)\)", prose):
        if re.match("https?:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://example.org/a.js">', 1),
        ('<link rel="stylesheet" href="http://example.org/a.css">', 1),
        ("<img alt=x src=https://example.org/a.png>", 1),
        ('<script src="assets/a.js">', 0),
        ('<a href="https://example.org">', 0),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(html, count):
    assert len(tool("hooks").LOADED.findall(html)) == count


def test_formulas_are_mathml_and_code_is_left_alone():
    formulas = tool("formulas")
    page = markdown.markdown(
        r"Of $a_i \le b*c*d$, `$x$` and $5, not $3.", extensions=[formulas.Formulas()]
    )
    (made,) = re.findall(r"<math .*?</math>", page)
    assert "<msub><mi>a</mi><mi>i</mi></msub>" in made
    assert "<em>" not in page
    assert "<code>$x$</code> and $5, not $3." in page
    block = ElementTree.fromstring(formulas.fence(r"\min_x \langle c, x \rangle"))
    assert "munder" in {element.tag.rpartition("}")[2] for element in block.iter()}


@pytest.mark.parametrize("name", pages.documentation())
def test_every_formula_of_a_page_can_be_drawn(name):
    text = pages.documentation()[name].read_text()
    formulas = tool("formulas")
    found = re.findall(r"^ *```math\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
    for latex in found + re.findall(formulas.DOLLARS, prose):
        drawn = formulas.mathml(latex, "block")
        ElementTree.fromstring(drawn)
        assert "\\" not in re.sub('alttext="[^"]*"', "", drawn)  # commands that are not known
    # mathematics is no HTML
    prose = re.sub(r"```.*?```|``.+?``|`[^`]+`", "", text, flags=re.DOTALL)
    assert not re.findall(r"<[A-Za-z/][^>\n]*>?", prose)  # write it between backticks


def test_every_picture_is_shown():
    text = "\n".join(page.read_text() for page in pages.documentation().values())
    for picture in (DOCS / "images").iterdir():
        assert f"images/{picture.name}" in text, picture.name


def test_nothing_is_loaded_from_elsewhere():
    settings = (pages.ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings
    assert "http" not in (DOCS / "styles.css").read_text()
    for page in pages.documentation().values():  # Material would load its renderer
        assert "```mermaid" not in page.read_text()


@pytest.mark.parametrize("script", ["architecture", pytest.param("lift", marks=pytest.mark.slow)])
def test_figures_are_made_by_scripts(script, tmp_path):
    path = DOCS / "figures" / f"{script}.py"
    subprocess.run([sys.executable, path, "--output", tmp_path], check=True, capture_output=True)
    made = {file.name for file in tmp_path.iterdir()}
    assert made
    assert made <= {file.name for file in (DOCS / "images").iterdir()}
