"""Files written completely or not at all, temporary folders, and leftovers of killed processes."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PART = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]{1,10})\.part", re.DOTALL)
"""Temporary names made by ``atomic_path``."""
_MACHINE = re.sub(r"[^\w.]", "_", platform.node())
_FOLDER = re.compile(rf"convexlift-{re.escape(_MACHINE)}-(?P<pid>[0-9]{{1,10}})-[^-]+")
"""Names of folders that ``temporary_folder`` made on this machine."""


@contextlib.contextmanager
def atomic_path(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A temporary file or folder beside ``path``, renamed to it when the block succeeds.

    No partial file ever has the final name, and an interrupted series cannot pass for a shorter
    one. A folder may replace an empty folder only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if folder:
            part.mkdir()
        yield part
        if folder and path.exists():
            path.rmdir()  # not every system lets a folder replace another
        os.replace(part, path)
    finally:
        _remove(part)


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder that is removed at the end; by default among the system's temporary files."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_dead_folders(parent)
    place = Path(tempfile.mkdtemp(prefix=f"convexlift-{_MACHINE}-{os.getpid()}-", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def remove_dead_folders(parent: Path) -> None:
    """Remove temporary folders that killed processes left here.

    A name holds the machine and the process: folders of other machines, which may share the parent,
    are not touched.
    """
    for found in parent.glob(f"convexlift-{_MACHINE}-*"):
        match = _FOLDER.fullmatch(found.name)
        if match and found.is_dir() and not _exists(int(match["pid"])):
            _remove(found)


def _exists(pid: int) -> bool:
    """Whether a process of any program has this number: folders in use must not be removed."""
    if Path("/proc/self").exists():
        return Path(f"/proc/{pid}").exists()
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove the temporary files and folders of ``paths`` that killed processes left behind."""
    for found in leftovers(paths):
        _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
    """Whether another process may still be writing; process numbers are reused."""
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
