"""The recipe of a training in words, from its settings as cards hold them.

Settings come from ``training.run_files.plain_settings``: records are mappings with their class
under "kind". Cards of earlier versions have the ``repr`` of the recipe under "settings". Nothing
here needs torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

Rows = list[tuple[str, str]]
"""Labels and texts."""
LEVELS = {
    "GaussianDenoising": ("gaussian-denoising", "sigma"),
    "Inpainting": ("inpainting", "noise"),
    "SaltAndPepper": ("salt-and-pepper", "fraction"),
}
"""Names of tasks and of their noise levels, by the class in the settings."""


def noise_levels(recipe: Mapping[str, Any]) -> dict[str, float]:
    """The noise level of each task of a training; tasks with a range of levels are left out."""
    settings = _settings(recipe)
    if settings.get("kind") == "AdversarialRecipe":  # its weight is that of the validation
        tasks: Any = [settings.get("validation_task") or settings.get("task")]
    else:
        tasks = settings.get("tasks", ())
        tasks = [each[0] for each in tasks if isinstance(each, list | tuple) and each]
    found = {}
    for task in tasks:
        if isinstance(task, Mapping) and not task.get("up_to") and task.get("kind") in LEVELS:
            name, field = LEVELS[task["kind"]]
            level = task.get(field)
            if isinstance(level, int | float) and level > 0:
                found[name] = float(level)
    return found


def recipe_words(recipe: Mapping[str, Any]) -> Rows:
    """Purpose, network and method of a training; other notes unchanged."""
    settings = _settings(recipe)
    notes = {} if settings is recipe else {**recipe}
    if settings:
        notes.pop("settings", None)
    more = [(_label(name), str(value)) for name, value in notes.items()]
    if not settings:
        return more
    return [
        ("Method", _method(settings)),
        ("Trained for", "; ".join(_task(task) for task in _tasks(settings))),
        ("Architecture", network_words(settings["network"]) if settings["network"] else ""),
        ("Training", _training(settings)),
        *more,
    ]


def _settings(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    return recipe if "kind" in recipe else _parsed(str(recipe.get("settings", "")))


def network_words(network: Mapping[str, Any]) -> str:
    """The architecture in words, from the settings of a network."""
    side = network["kernel"]
    filters = f"{network['channels']} filters of {side} x {side}"
    kind, depth = network["architecture"], network.get("depth", 1)
    layers = f", {depth} layers" if depth > 1 else ""
    colour = ", in colour" if network.get("in_channels", 1) == 3 else ""
    if kind in ("baseline", "deep"):
        hidden = network.get("hidden", 256)
        more = " and two more convolutions" if kind == "deep" else ""
        size = "one size" if network["image_size"] is None else f"{network['image_size']} pixels"
        return f"{kind}: {filters}{more}, {hidden} hidden units, for images of {size}{colour}"
    if kind == "adaptive":
        widths = " / ".join(map(str, network["widths"]))
        text = f"{filters}{layers}, weighted at each pixel by a guide of {widths} channels"
        return f"adaptive: {text}, for images of any size{colour}"
    return f"{kind}: {filters}{layers}, for images of any size{colour}"


def _method(settings: Mapping[str, Any]) -> str:
    if settings["kind"] == "AdversarialRecipe":
        return "adversarial: R is made small on clean images and large on damaged ones"
    return "bilevel: reconstructions are brought close to the clean images"


def _tasks(settings: Mapping[str, Any]) -> list[Any]:
    if "task" in settings:
        return [settings["task"]]
    return [task for task, _ in settings["tasks"]]


def _task(task: Mapping[str, Any] | None) -> str:
    if task is None:
        return "given damaged images"
    if task["kind"] == "GaussianDenoising":
        up_to = f" to {task['up_to']:.3g}" if task.get("up_to") else ""
        return f"Gaussian noise of sigma {task['sigma']:.3g}{up_to} (white is 1)"
    if task["kind"] == "Inpainting":
        missing = f"{100 * task['missing']:g} % of the pixels missing"
        mask = "one mask for all images" if task.get("mask") else missing
        return f"inpainting, {mask} and noise of sigma {task['noise']:.3g} on the others"
    if task["kind"] == "SaltAndPepper":
        return f"salt and pepper on {100 * task['fraction']:g} % of the pixels"
    if task["kind"] == "SparseViewCT":
        return f"sparse-view CT, Poisson counts over a background of {task['background']:g}"
    return str(task["kind"])


def _training(settings: Mapping[str, Any]) -> str:
    options, crop = settings["options"], settings["crop"]
    what = "whole images" if crop is None else f"crops of {crop} x {crop}"
    relative = ", relative to each tensor's size" if options["relative"] else ""
    rate = f"Adam, learning rate {options['learning_rate']:g}{relative}"
    return f"{options['steps']} steps of {settings['batch_size']} {what}; {rate}"


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _parsed(text: str) -> dict[str, Any]:
    """The settings in the ``repr`` of a recipe; empty for other texts."""
    plain = re.sub(r"scanner=.*?\)\), ", "", text)  # its repr is not Python
    try:
        return _value(ast.parse(plain, mode="eval").body)  # type: ignore[no-any-return]
    except (SyntaxError, ValueError, AttributeError):
        return {}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        arguments = {str(each.arg): _value(each.value) for each in node.keywords}
        return {"kind": node.func.id, **arguments}  # type: ignore[attr-defined]
    if isinstance(node, ast.Tuple):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)
