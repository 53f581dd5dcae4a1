"""``convexlift train adversarial`` and ``convexlift train bilevel``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter
from typing import Any, get_type_hints

from convexlift.cli.app import computes, group_of_commands, with_options
from convexlift.cli.help_text import Command, epilog
from convexlift.cli.training_options import AdversarialOptions, BilevelOptions, TrainOptions

DETAILS = """\
{title}

Task, noise level, network and number of images are printed before the training starts. Options not given keep the recipe's values; the defaults below are those of {default}.

Writes model.safetensors, model.json, log.csv, options.json and checkpoint.pt to the folder of --output. Ctrl-C keeps a checkpoint, and --resume DIR continues from it. To train a finished model longer, start from it: --start DIR/model.

Recipes of --preset:

{presets}"""  # noqa: E501
EXAMPLES = {
    "adversarial": """\
convexlift train adversarial photos -o runs/critic
convexlift train adversarial photos --task inpaint --channels 24 -o runs/critic
convexlift train adversarial --resume runs/critic""",
    "bilevel": """\
convexlift train bilevel photos -o runs/photos
convexlift train bilevel photos --task denoise --sigma 0.05 -o runs/photos
convexlift train bilevel --resume runs/photos""",
}

group = group_of_commands(
    "train",
    """\
Train a regularizer on your own images.

adversarial is fast and needs no solver: a first regularizer in minutes. bilevel takes longer, and gives the best reconstructions of one task.""",  # noqa: E501
    "\n".join(text.splitlines()[0] for text in EXAMPLES.values()),
)


def _command(kind: type[TrainOptions]) -> Callable[..., None]:
    """The command whose options are the fields of a record."""

    def command(**given: Any) -> None:
        from convexlift.cli.training_job import run_job

        run_job(kind(**given))

    hints = get_type_hints(kind, include_extras=True)
    for name, number in kind.defaults.items():
        text = hints[name].__metadata__[0]
        text.help = f"{text.help} [default: {number:g}]"
    options = {
        each.name: (Parameter.empty if each.default is MISSING else each.default, hints[each.name])
        for each in fields(kind)
    }
    return computes(with_options(command, options))


KINDS: tuple[type[TrainOptions], ...] = (AdversarialOptions, BilevelOptions)
for _kind in KINDS:
    _name = _kind.kind
    _first = next(iter(_kind.presets))
    _width = max(map(len, _kind.presets))
    _lines = [f"  {name:<{_width}}  {purpose}" for name, purpose in _kind.presets.items()]
    _help = DETAILS.format(title=_kind.__doc__, default=_first, presets="\n".join(_lines))
    group.command(_name, cls=Command, help=_help, epilog=epilog(EXAMPLES[_name]))(_command(_kind))
