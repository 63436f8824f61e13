"""Adapters: trained in a few weights, kept in kilobytes, many on one encoder.

task = kbert.tasks.TextClassifier.from_preset("bert-base-uncased", new_head=True, labels=labels)
kbert.adapters.add(task, "lora", rank=8)
task.fit(texts, answers)
kbert.adapters.save(task, "adapters/reviews")

task = kbert.adapters.load_task("bert-base-uncased", "adapters/reviews")
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.adapters.adapterhub import (
        read_adapterhub as read_adapterhub,
        write_adapterhub as write_adapterhub,
    )
    from kbert.adapters.folder import load as load, load_task as load_task, save as save
    from kbert.adapters.peft import read_peft as read_peft, write_peft as write_peft
    from kbert.adapters.serving import export as export
    from kbert.models.adapters import (
        Adapter as Adapter,
        BitFit as BitFit,
        Houlsby as Houlsby,
        Lora as Lora,
        Pfeiffer as Pfeiffer,
        Prefix as Prefix,
        ProjectedAttention as ProjectedAttention,
        activate as activate,
        add as add,
        merge as merge,
        parse as parse,
        register_adapter as register_adapter,
        remove as remove,
        using as using,
    )
    from kbert.models.adapters.base import insert as insert
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
