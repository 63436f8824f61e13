"""Adapters: few trainable weights, files of kilobytes, several on one encoder.

task = kbert.tasks.TextClassifier.from_preset("bert-base-uncased", new_head=True, labels=labels)
kbert.edit.adapters.add(task, "lora", rank=8)
task.fit(texts, answers)
kbert.edit.adapters.save(task, "adapters/reviews")

task = kbert.edit.adapters.load_task("bert-base-uncased", "adapters/reviews")
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.edit.adapters.adapterhub import (
        read_adapterhub as read_adapterhub,
        write_adapterhub as write_adapterhub,
    )
    from kbert.edit.adapters.attention import (
        Prefix as Prefix,
        ProjectedAttention as ProjectedAttention,
    )
    from kbert.edit.adapters.base import (
        Adapter as Adapter,
        activate as activate,
        add as add,
        insert as insert,
        merge as merge,
        parse as parse,
        remove as remove,
        running as running,
        using as using,
    )
    from kbert.edit.adapters.bottleneck import Houlsby as Houlsby, Pfeiffer as Pfeiffer
    from kbert.edit.adapters.folder import load as load, load_task as load_task, save as save
    from kbert.edit.adapters.lora import BitFit as BitFit, Lora as Lora
    from kbert.edit.adapters.peft import read_peft as read_peft, write_peft as write_peft
    from kbert.edit.adapters.servable import export as export
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
