"""Adapters: trained in a few weights, kept in kilobytes, many on one encoder.

task = kbert.tasks.TextClassifier.from_preset("bert-base-uncased", new_head=True, labels=labels)
kbert.adapters.add(task, "lora", rank=8)
task.fit(texts, answers)
kbert.adapters.save(task, "adapters/reviews")

task = kbert.adapters.load_task("bert-base-uncased", "adapters/reviews")
"""

from kbert.adapters.adapterhub import read_adapterhub, write_adapterhub
from kbert.adapters.folder import load, load_task, save
from kbert.adapters.peft import read_peft, write_peft
from kbert.adapters.serving import export
from kbert.models.adapters import (
    Adapter,
    BitFit,
    Houlsby,
    Lora,
    Pfeiffer,
    Prefix,
    ProjectedAttention,
    activate,
    add,
    merge,
    parse,
    register_adapter,
    remove,
    using,
)
from kbert.models.adapters.base import insert

__all__ = [
    "Adapter",
    "BitFit",
    "Houlsby",
    "Lora",
    "Pfeiffer",
    "Prefix",
    "ProjectedAttention",
    "activate",
    "add",
    "export",
    "insert",
    "load",
    "load_task",
    "merge",
    "parse",
    "read_adapterhub",
    "read_peft",
    "register_adapter",
    "remove",
    "save",
    "using",
    "write_adapterhub",
    "write_peft",
]
