"""Files by which folders of adapters are known: kbert's own, and those of other packages."""

from typing import NamedTuple

ADAPTER_FILE = "adapter.json"
FOREIGN_FILE = "adapter_config.json"  # of peft and of `adapters`


class EditFile(NamedTuple):
    """What a file of that name says to whoever reads or writes models.

    Attributes:
        what: What the folder holds.
        alone: What to do where there is no model beside it.
        beside: What becomes of it beside a model; None = such a folder is none of ours.
        config_keys: Keys of a model's `config.json` that are its own, and say nothing of the model.
    """

    what: str
    alone: str
    beside: str | None = None
    config_keys: tuple[str, ...] = ()


OURS = EditFile("an adapter", "is of an adapter: see kbert.edit.adapters.load_task.")
THEIRS = EditFile(
    "an adapter",
    "is of an adapter without its model: load the model, then the adapter by "
    "kbert.edit.adapters.read_peft or read_adapterhub.",
    "is not applied, as transformers would: kbert.edit.adapters.read_peft(model, folder) adds "
    "peft's",
    ("adapters",),
)
