"""Settings that all methods of training word vectors share."""

from typing import ClassVar

from kbert.core.options import Options, option
from kbert.word_vectors.corpus import Corpus
from kbert.word_vectors.learner import Learner


class TrainingOptions(Options):
    """Settings of a method: the corpus, the size of the vectors, the passes over the corpus.

    A subclass has a `kind`, its name in programs.

    Args:
        {options}
    """

    kind: ClassVar[str]

    width: int = option(100, help="Width of the vectors.", at_least=1)
    window: int = option(
        5,
        help="Most words on either side of a word that count as its context.",
        at_least=1,
        by_task=True,
    )
    min_count: int = option(
        5,
        help="Fewest occurrences of a word; rarer words are removed from the texts.",
        at_least=1,
    )
    epochs: int = option(5, help="Passes over the examples.", at_least=1, by_task=True)
    learning_rate: float = option(
        0.1, help="Learning rate of Adagrad, at the start if it decays.", above=0, by_task=True
    )
    batch_size: int = option(4096, help="Examples per step.", at_least=1)
    lowercase: bool = option(True, help="Convert the texts to lower case.")
    seed: int = option(0, help="Seed of all random numbers.", at_least=0)

    def learner(self, corpus: Corpus) -> Learner:
        """Makes the learner of these settings and a corpus."""
        raise NotImplementedError
