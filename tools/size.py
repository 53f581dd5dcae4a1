"""Lines of code by room, beside the size reached so far and the budget of each.

    python tools/size.py            the table; fails if a room has grown beyond its record
    python tools/size.py --lower    the table; records the sizes of rooms that have shrunk

Code is every line that holds a token other than a comment or a docstring; a line of more than 100
characters counts as several. Explanations are free, so that nothing pays for leaving them out.
Records are in ``size.json`` and only ever go down.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path(__file__).with_suffix(".json")
WIDTH = 100
CODE = {".py", ".pyi", ".cu", ".cuh", ".h", ".cpp", ".rs", ".js", ".css", ".html", ".jinja"}
WITHOUT_CODE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"}
FOLDERS = {  # folders of the package whose rooms have other names
    "kernels": "gpu",
    "files": "io",
    "scans": "io",
    "reconstruction": "reconstruct",
    "deepinv": "adapters",
}
MODULES = {  # modules at the top of the package; the others are in the room "other"
    "adapters": "cil proximal_map",
    "core modules": "tensors parts decisions side_streams "
    "strips threads proofs proof_checker checks precision",
}
AROUND = ("experiments", "benchmarks", "soak", "ecosystem", "tools", "checkers")


def docstrings(tree: ast.AST) -> set[int]:
    """The numbers of the lines that document modules, classes, functions and attributes."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            match each:
                case ast.Expr(value=ast.Constant(value=str())):
                    lines.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return lines


def code_lines(path: Path) -> int:
    """The lines of code in a file, each weighed by its width."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix in (".py", ".pyi"):
        numbers: set[int] = set()
        for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
            if tokenize.tok_name[token.type] not in WITHOUT_CODE:
                numbers.update(range(token.start[0], token.end[0] + 1))
        numbers -= docstrings(ast.parse(text))
        chosen = [lines[n - 1] for n in numbers if n <= len(lines)]
    else:
        marks = ("#", "<!--") if path.suffix in (".html", ".jinja", ".css") else ("//", "/*")
        chosen = [s for s in lines if s.strip() and not s.strip().startswith(marks)]
    return sum(max(1, -(-len(line.rstrip()) // WIDTH)) for line in chosen)


def room(inside: tuple[str, ...], rooms: dict[str, dict[str, int]]) -> str:
    """The room of a file of the package, by its path inside it."""
    if len(inside) == 1:
        stem = Path(inside[0]).stem
        return next((name for name, stems in MODULES.items() if stem in stems.split()), "other")
    name = FOLDERS.get(inside[0], inside[0])
    return name if name in rooms else "other"


def measure(rooms: dict[str, dict[str, int]]) -> Counter[str]:
    """The size of every room, of all files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    sizes: Counter[str] = Counter()
    for name in map(Path, listed.splitlines()):
        path, top = ROOT / name, name.parts[0]
        if not path.is_file():
            continue
        if name.suffix == ".md" and (top == "docs" or len(name.parts) == 1):
            sizes["words of docs"] += len(path.read_text(encoding="utf-8").split())
        elif name.suffix in CODE and top == "src":
            lines = code_lines(path)
            sizes["src"] += lines
            sizes["src modules"] += name.suffix == ".py"
            sizes[room(name.parts[2:], rooms)] += lines
        elif name.suffix in CODE and top in ("tests", *AROUND):
            sizes["tests" if top == "tests" else "around"] += code_lines(path)
    return sizes


def main() -> int:
    """Print the table, and compare it with the records or lower them."""
    rooms: dict[str, dict[str, int]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    sizes = measure(rooms)
    grown = [name for name, each in rooms.items() if sizes[name] > each["reached"]]
    print(f"{'':16}{'now':>8}{'reached':>10}{'budget':>10}")
    for name, each in rooms.items():
        mark = "   GROWN" if name in grown else ""
        print(f"{name:16}{sizes[name]:8,}{each['reached']:10,}{each['budget']:10,}{mark}")
    if "--lower" in sys.argv[1:]:
        for name, each in rooms.items():
            each["reached"] = min(each["reached"], sizes[name])
        RECORDS.write_text(json.dumps(rooms, indent=1) + "\n", encoding="utf-8")
    if grown:
        print(f"larger than {RECORDS.name} records: {', '.join(grown)}; make something smaller")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
