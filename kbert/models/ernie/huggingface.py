"""Hugging Face's ERNIE: BERT's names and keys, and a task embedding for every token.

(Sun et al. 2019, "ERNIE 2.0", https://arxiv.org/abs/1907.12412.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import Architecture
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike

# Default options of the part:
_USUAL_TASKS = 3
_TASKS = "task_type_vocab_size"


class Ernie(Bert):
    """Baidu's ERNIE 1.0 to 3.0. With task embeddings, transformers uses the first by default."""

    model_type = "ernie"
    part = "task_embeddings"
    title = "ERNIE"
    class_prefix = "Ernie"
    prefix = "ernie"
    required: ClassVar[Mapping[str, tuple]] = {**Bert.required, "task_id": (0, None)}
    ignored = Bert.ignored | {"use_task_id", _TASKS}
    own_fields = (*Architecture.own_fields, "part")

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = Rule("encoder/embeddings/task", ("ernie.embeddings.task_type_embeddings.weight",))
        return [*super().rules(config, head), table]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if not content.get("use_task_id", False):
            return fields
        return {
            **fields,
            "part": {"name": self.part, "num_tasks": content.get(_TASKS, _USUAL_TASKS)},
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        part = config.part or {}
        return {
            **super().write_fields(config, tokenizer),
            "use_task_id": bool(part),
            _TASKS: part.get("num_tasks", _USUAL_TASKS),
        }

    def misfits(self, config: EncoderConfig) -> list[str]:
        misfits = super().misfits(config)
        part = config.part or {"name": self.part}
        if part["name"] != self.part:
            misfits.append(f"its part is {self.part!r}")
        elif part.get("task", 0):
            misfits.append("its default task is the first")
        return misfits
