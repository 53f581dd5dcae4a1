"""Files that are written completely or not at all, and the temporary files of killed processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PART = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]{1,10})\.part", re.DOTALL)
"""The temporary names of ``atomic_path`` and ``scans.formats.write_slices``."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that becomes it when the block ends well.

    No half-written file ever has the final name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove the temporary files and folders of ``paths`` that killed processes left behind."""
    for found in leftovers(paths):
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)


def leftovers(paths: Iterable[Path]) -> Iterator[Path]:
    """The temporary files and folders of ``paths`` that killed processes left behind.

    A temporary name holds the final name and the number of the process. Files that a running
    process has written within the last hour are left out.
    """
    names: dict[Path, set[str]] = {}
    for path in paths:
        names.setdefault(path.parent, set()).add(path.name)
    for folder, wanted in names.items():
        if not folder.is_dir():
            continue
        for found in list(folder.iterdir()):
            match = _PART.fullmatch(found.name)
            if match and match["name"] in wanted and not _in_use(found, int(match["pid"])):
                yield found


def _in_use(part: Path, pid: int) -> bool:
    """Whether another process may still be writing; process numbers are used again."""
    if pid == os.getpid():
        return False
    try:
        if Path("/proc/self/cmdline").exists():
            runs = b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
        else:
            os.kill(pid, 0)
            runs = True
        return runs and time.time() - part.stat().st_mtime < 3600
    except (OSError, OverflowError):
        return False
