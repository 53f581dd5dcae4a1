"""``push_to_hub``: a network with its card as a repository of the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convexlift.models.files import ModelCard
from convexlift.models.repositories import FORM, STEM, imported_hub
from convexlift.models.store import save
from convexlift.networks.icnn import InputConvexNetwork

LICENSES = {
    "mit": "mit", "apache 2.0": "apache-2.0", "cc0": "cc0-1.0", "cc0 1.0": "cc0-1.0",
    "cc by 4.0": "cc-by-4.0", "cc by-sa 4.0": "cc-by-sa-4.0", "cc by-nc 4.0": "cc-by-nc-4.0",
}  # fmt: skip
"""Names that the Hub knows; any other licence is ``other``, with its own name."""


def push_to_hub(
    network: InputConvexNetwork,
    repository: str,
    card: ModelCard | None = None,
    *,
    private: bool = False,
) -> str:
    """Write a network to the Hub as ``org/name``, created if necessary; returns its address.

    The repository gets ``model.safetensors`` and ``model.json``, as ``save`` writes them, and a
    ``README.md`` made from the card. Log in first: ``hf auth login``, or set HF_TOKEN.

    Args:
        network: built from the library's activations and maps.
        repository: ``org/name``.
        card: information for users; by default ``network.card``, if it still describes the weights.
        private: whether a new repository is private.
    """
    if not isinstance(repository, str) or not FORM.fullmatch(repository):
        raise ValueError(f"a repository is named org/name, got {repository!r}")
    card = network.card if card is None else card
    if not isinstance(card, ModelCard):
        raise ValueError("a network on the Hub needs a card: push_to_hub(..., card=ModelCard(...))")
    api = imported_hub().HfApi()
    with TemporaryDirectory() as folder:
        save(network, Path(folder) / STEM, card)
        (Path(folder) / "README.md").write_text(readme(card, repository, network), encoding="utf-8")
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"{card.name}, by convexlift"
        )
    return str(made)


def readme(card: ModelCard, repository: str, network: InputConvexNetwork | None = None) -> str:
    """The model card of the Hub: metadata between dashes (JSON values are YAML), then text."""
    meta = "\n".join(f"{key}: {json.dumps(value)}" for key, value in metadata(card).items())
    noise = (
        ",\n    noise=sigma,  # of the data" if network is not None and network.reads_data else ""
    )
    return f"""---
{meta}
---

# {card.name}

{card.summary}

A convex regularizer R for  min_x D(A x, y) + weight R(x):  every image comes with a certified
optimality gap.

```python
import convexlift as cl

network = cl.load("{repository}")
problem = cl.VariationalProblem(
    fidelity=cl.SquaredL2(y), regularizer=network, weight=network.card.weight{noise}
)
solution = cl.solve(problem)
```

```
{card}
```
"""


def metadata(card: ModelCard) -> dict[str, Any]:
    """Licence, tags and results in the terms of the Hub."""
    terms = card.license.partition(";")[0].strip()
    known = LICENSES.get(terms.lower())
    found: dict[str, Any] = {"library_name": "convexlift", "license": known or "other"}
    if known is None:
        found["license_name"] = terms or "unstated"
    found["tags"] = ["convexlift", "convex-regularizer", "inverse-problems", card.task]
    results = [
        {
            "task": {"type": "image-to-image", "name": card.task},
            "dataset": {"type": "images", "name": name},
            "metrics": [{"type": key, "value": value} for key, value in values.items()],
        }
        for name, values in card.results.items()
    ]
    if results:
        found["metrics"] = sorted({key for values in card.results.values() for key in values})
        found["model-index"] = [{"name": card.name, "results": results}]
    return found
