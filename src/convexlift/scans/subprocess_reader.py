"""Readers in a process of their own, with limits of time and memory.

Some C libraries can be made to loop for ever, or to allocate gigabytes, by a file of a few
kilobytes; from inside Python neither can be stopped. The child process runs this file as a script
and imports one module by its path, so that it starts without the rest of the package. A reader
takes values that JSON can say, returns arrays and texts by name, and raises ValueError.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Members = tuple[dict[str, Any], dict[str, str]]
"""Arrays and texts, by name."""

_RESULT = "result.json"


class IsolatedError(ValueError):
    """The reader refused the file, or had to be stopped; the message has no file name."""


def run_isolated(
    module: Path, function: str, arguments: Mapping[str, Any], *, seconds: float, extra_bytes: int
) -> Members:
    """``function(**arguments)`` of the Python file ``module``, in a child process.

    Args:
        module: a file that imports neither this package nor anything that starts slowly.
        function: the reader in it.
        arguments: values of JSON.
        seconds: after which the child is ended.
        extra_bytes: memory the child may use beyond what it starts with.

    Raises:
        IsolatedError: with the reader's own message, or the limit that was reached.
    """
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="convexlift-") as name:
        folder = Path(name)
        task = {
            "module": str(module), "function": function, "arguments": dict(arguments),
            "folder": name, "seconds": seconds, "bytes": extra_bytes, "path": sys.path,
        }  # fmt: skip
        try:
            ended = subprocess.run(
                [sys.executable, "-P", __file__],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                timeout=seconds,
                # One thread starts faster; and Ctrl-C is the parent's to handle.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise IsolatedError(_too_slow(seconds)) from None
        if not (folder / _RESULT).exists():
            raise IsolatedError(_death(ended.returncode, seconds))
        result = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
        if "error" in result:
            raise IsolatedError(result["error"])
        arrays = {
            key: np.load(folder / file, allow_pickle=False)
            for key, file in result["arrays"].items()
        }
        return arrays, result["texts"]


def _too_slow(seconds: float) -> str:
    return (
        f"it was not read within {seconds:g} seconds, as happens with damaged files; if it is only "
        f"large, allow more with --read-seconds {10 * seconds:g} (read_seconds= in Python)"
    )


def _death(status: int, seconds: float) -> str:
    """What a child that left no result died of."""
    with contextlib.suppress(ImportError):
        import signal

        if status == -signal.SIGXCPU:
            return _too_slow(seconds)
    return f"its reader crashed (status {status}), as happens with damaged files; copy it again"


# In the child ------------------------------------------------------------------------------------


def _main() -> None:
    task = json.loads(sys.stdin.read())
    sys.path[:] = task["path"]
    folder = Path(task["folder"])
    spec = importlib.util.spec_from_file_location("isolated_reader", task["module"])
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    import numpy as np

    _limit(task["seconds"], task["bytes"])
    try:
        arrays, texts = getattr(reader, task["function"])(**task["arguments"])
        files = {name: f"{number}.npy" for number, name in enumerate(arrays)}
        for name, file in files.items():
            np.save(folder / file, arrays[name], allow_pickle=False)
        result: dict[str, Any] = {"arrays": files, "texts": texts}
    except Exception as error:
        result = {"error": _sentence(error)}
    part = folder / f"{_RESULT}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(folder / _RESULT)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "memory allocation failed" in text:
        return "it needs more memory than a file of its length should; copy or export it again"
    if text and isinstance(error, ValueError | OSError):
        return text
    return f"it is damaged ({type(error).__name__})"


def _limit(seconds: float, extra_bytes: int) -> None:
    """Limit this process, where the system can; the parent limits the time in any case."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + extra_bytes
    for kind, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, int(seconds) + 1)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit was set already
            resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    _main()
