"""Models in repositories of the Hugging Face Hub: ``org/name`` in place of a path.

A repository holds ``model.safetensors``, ``model.json`` and a ``README.md`` for readers. The Hub is
contacted only to load names of the form ``org/name`` whose ``org`` is not a local folder.
Downloads are cached, and HF_HUB_OFFLINE is honoured, by ``huggingface_hub`` (the extra ``hub``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

STEM = "model"
"""The name of both files in a repository."""
FORM = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MISSING = "models of the Hub need huggingface_hub: pip install 'convexlift[hub]'"


def is_repository(name: object) -> bool:
    """Whether a name has the form ``org/name`` and no local file or folder has that name."""
    if not isinstance(name, str) or not FORM.fullmatch(name):
        return False
    path = Path(name)
    return not path.parent.is_dir() and path.suffix not in (".safetensors", ".json", ".pt", ".pth")


def download(repository: str) -> Path:
    """The path, without an ending, of the two files of a repository; from the cache if possible.

    ValueError says whether the extra, the network, the repository or its files are missing.
    """
    hub = imported_hub()
    errors = hub.errors
    try:
        sheet = Path(hub.hf_hub_download(repository, f"{STEM}.json"))
        # Both of one commit, which is the name of the folder.
        hub.hf_hub_download(repository, f"{STEM}.safetensors", revision=sheet.parent.name)
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as error:
        if isinstance(error, errors.RepositoryNotFoundError):
            cause = "there is no such repository on the Hub, or it is private"
        elif isinstance(error, errors.RemoteEntryNotFoundError):
            cause = (
                f"the repository has no {STEM}.json and {STEM}.safetensors, which "
                "convexlift.push_to_hub writes"
            )
        elif isinstance(error, errors.HfHubHTTPError):
            cause = f"the Hub refuses ({str(error).splitlines()[0]})"
        else:
            cause = (
                "it is not in the cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set)"
            )
        raise ValueError(f"{repository}: {cause}; no file or folder here has this name") from None
    return sheet.with_suffix("")


def imported_hub() -> Any:
    """The module ``huggingface_hub``; ImportError says how to install it."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ImportError(MISSING) from None
    return huggingface_hub
