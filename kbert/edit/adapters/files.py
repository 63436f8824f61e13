"""Files that identify adapter folders: those of kbert and those of other packages."""

from typing import NamedTuple

ADAPTER_FILE = "adapter.json"
FOREIGN_FILE = "adapter_config.json"  # used by peft and by `adapters`


class EditFile(NamedTuple):
    """Messages for code that finds an adapter file where it reads or writes a model.

    Attributes:
        what: Content of the folder.
        alone: End of the message if the folder contains no model: what to do instead.
        beside: End of the warning if the folder also contains a model; None = no warning.
        config_keys: Keys of a model's `config.json` that belong to the adapter, not to the model.
    """

    what: str
    alone: str
    beside: str | None = None
    config_keys: tuple[str, ...] = ()


OURS = EditFile("an adapter", "contains an adapter: see kbert.edit.adapters.load_task.")
THEIRS = EditFile(
    "an adapter",
    "contains an adapter without its model: load the model, then the adapter by "
    "kbert.edit.adapters.read_peft or read_adapterhub.",
    "is not applied, although transformers would apply it: kbert.edit.adapters.read_peft(model, "
    "folder) adds peft's",
    ("adapters",),
)
