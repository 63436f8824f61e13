"""Task embeddings of ERNIE 2.0 and 3.0: the task's embedding is added to every token.

(Sun et al. 2019, "ERNIE 2.0", https://arxiv.org/abs/1907.12412, section 4.1.)
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.core.options import option
from kbert.core.types import Shape, Tensor
from kbert.layers import Embeddings
from kbert.models.blocks import embeddings_of
from kbert.models.parts import Part


class EmbeddingsOfTask(Embeddings):
    """`Embeddings` with a task table, of which the same row is added to every token.

    Args:
        num_tasks: number of rows of the table.
        task: index of the row to add.
        **options: further arguments of `Embeddings`.

    Example:
        >>> layer = EmbeddingsOfTask(num_tasks=3, task=0, vocabulary_size=9, embedding_size=4,
        ...                          hidden_size=4, max_positions=6, num_segments=2)
        >>> layer.build((None, None))
        >>> [weight.name for weight in layer.weights]
        ['token', 'position', 'segment', 'task', 'gamma', 'beta']
    """

    def __init__(self, *, num_tasks: int, task: int, **options: Any) -> None:
        super().__init__(**options)
        self.num_tasks = num_tasks
        self.task_number = task

    def build(self, token_ids_shape: Shape) -> None:
        super().build(token_ids_shape)
        self.task = self._add_table("task", self.num_tasks)

    def _summed(self, token_ids: Tensor, segment_ids: Any = None, places: Any = None) -> Tensor:
        return super()._summed(token_ids, segment_ids, places) + self.task[self.task_number]


class TaskEmbeddings(Part):
    """Task embeddings of models that were trained on several tasks one after another.

    Args:
        {options}

    Example:
        >>> import kbert
        >>> kbert.family("nghuyong/ernie-3.0-base-zh").part
        {'name': 'task_embeddings', 'num_tasks': 3}
    """

    kind = "task_embeddings"

    num_tasks: int = option(3, help="Number of tasks, each with a vector.", at_least=1)
    task: int = option(0, help="Index of the task whose vector is added.", at_least=0)

    def check_config(self, config: EncoderConfig) -> None:
        if self.task >= self.num_tasks:
            raise ValueError(
                f"`task` must be less than `num_tasks`. Received: task={self.task}, "
                f"num_tasks={self.num_tasks}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        return self.num_tasks * config.embedding_width

    def make_embeddings(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        tasks = {"num_tasks": self.num_tasks, "task": self.task}
        return embeddings_of(config, EmbeddingsOfTask, **tasks, **kwargs)
