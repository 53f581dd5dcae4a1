"""The Python of the documentation: its blocks, what they print, and what the page says they print.

A page is run from top to bottom in one namespace, as a reader would; with
``<!-- each block runs alone -->`` in it, every block has a namespace of its own. A block after
``<!-- not run: reason -->`` is left out. A fence without a language (or ``text``) right after a
block shows its output.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALONE = "<!-- each block runs alone -->"
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?"
    r"```python\n(?P<code>.*?)^```\n"
    r"(?:\n*```(?:text)?\n(?P<shown>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
SECONDS = re.compile(r"\d+\.\d+ s\b")
WITHIN = re.compile(r"within ([\d.]+) %")
ITERATIONS = re.compile(r"after (\d+) iterations")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


@dataclass(frozen=True)
class Block:
    """A fence of Python, the output below it, and why it is not run, if it is not."""

    code: str
    line: int
    shown: str | None
    reason: str | None


def documentation() -> dict[str, Path]:
    """Every page, by its name from the root of the repository."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {page.relative_to(ROOT).as_posix(): page for page in pages}


def blocks(page: Path) -> list[Block]:
    """All Python of a page; none may hide in another kind of fence."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(m["code"], text.count("\n", 0, m.start("code")), m["shown"], m["reason"])
        for m in FENCE.finditer(text)
    ]
    assert len(found) == text.count("```python") + text.count("```py\n"), page
    return found


def run(
    page: Path, scope: dict[str, object], replaced: Mapping[str, str] | None = None
) -> Iterator[tuple[Block, str]]:
    """Execute the blocks one after the other; each with what it printed.

    Args:
        page: the page.
        scope: the namespace, which is changed.
        replaced: what is printed, each once, and what is run in its place.
    """
    alone = ALONE in page.read_text(encoding="utf-8")
    left = dict(replaced or {})
    given = dict(scope)
    for block in blocks(page):
        if block.reason is not None:
            continue
        code = block.code
        for printed in [text for text in left if text in code]:
            assert code.count(printed) == 1, printed
            code = code.replace(printed, left.pop(printed))
        if alone:
            scope.clear()
            scope.update(given)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n" * block.line + code, str(page), "exec"), scope)
        yield block, output.getvalue()
    assert not left, f"not on the page: {list(left)}"


def differences(shown: str, printed: str) -> list[str]:
    """Where the output on a page is not what came out.

    Seconds are free, iterations may differ by a check or a tenth, gaps (numbers with an exponent)
    by a factor of 1.5, all other numbers by 1 %: processors do not round alike.
    """
    expected, found = (_normal(text) for text in (shown, printed))
    if NUMBER.sub("#", expected) != NUMBER.sub("#", found):
        return [f"the page shows\n{shown}\nbut this was printed\n{printed}"]
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(found), strict=True)
    wrong = [f"{a} on the page, {b} printed" for a, b in pairs if not _close(a, b)]
    counts = zip(ITERATIONS.findall(shown), ITERATIONS.findall(printed), strict=True)
    wrong += [
        f"{a} iterations on the page, {b} were done"
        for a, b in counts
        if abs(int(a) - int(b)) > max(10, 0.1 * int(a))
    ]
    return wrong


def _normal(text: str) -> str:
    text = " ".join(text.split())  # sentences wrap elsewhere if a number has more digits
    text = ITERATIONS.sub("after some iterations", SECONDS.sub("some s", text))
    return WITHIN.sub(lambda found: f"within {float(found[1]):.1e} %", text)  # a gap in words


def _close(first: str, second: str) -> bool:
    a, b = float(first), float(second)
    if "e" in first:
        return a == b or (a * b > 0 and 1 / 1.5 <= a / b <= 1.5)
    return abs(a - b) <= 0.01 * max(abs(a), abs(b))
