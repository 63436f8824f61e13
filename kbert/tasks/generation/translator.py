"""Translation of sentences into another language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from kbert.decoding import Beam
from kbert.tasks.corpora import DenoisedCorpus
from kbert.tasks.generation.base import GenerationTask
from kbert.tasks.generation.options import TranslatorOptions
from kbert.tasks.generation.pairs_objective import (
    TRANSFORMER,
    TRANSFORMER_WARMUP,
    PairsObjective,
)
from kbert.tasks.generation.source_answers import TranslationAnswers
from kbert.tasks.generation.text_to_text import TextToText
from kbert.tasks.generation.translation_batches import (
    held_out_batches,
    holds_pairs,
    pair_batches,
    pairs_of,
)
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.optimization.settings import default_warmup
from kbert.training.step.keras_arguments import refusing_x

MAX_TOKENS = 4096  # tokens per side of a batch


class Translator(TextToText):
    """A `TextToText` that translates, trained from scratch on sentence pairs.

    (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.) Its defaults are the paper's: batches
    of a number of tokens, the optimizer, label smoothing (section 5.4), and a beam of width 4 with
    a length penalty of 0.6. `fit` takes the batches of `kbert.data.translation_dataset`, or pairs
    of strings. Losses, metrics and what else `fit` takes are those of `TextToText`.

    Args:
        seq2seq: a `kbert.Seq2Seq`, or a `kbert.models.PrefixSeq2Seq`.
        tokenizer: tokenizer of both languages. Its "cls" token starts a target, its "sep" token
            ends source and target.
        name: name of the task.
        **options: settings:

            {options}

    Raises:
        TypeError: the model is of another class.
        ValueError: the vocabularies differ, or a value is out of range.

    Example:
        >>> import kbert
        >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = kbert.WordPieceTokenizer([*specials, "the", "sun", "die", "sonne"])
        >>> config = kbert.Seq2SeqConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> translator = Translator(kbert.Seq2Seq(config), tokenizer)
        >>> len(translator.predict(["the sun", ""], max_new_tokens=3))
        2
    """

    kind = "translate"
    options = TranslatorOptions
    file_answers = TranslationAnswers
    shown_metrics = ("perplexity", "bleu")
    answer_name = "translation"
    signature_name = "translate"
    usual_method = Beam()  # width 4, length penalty 0.6

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """Returns the paper's Adam: β2 = 0.98, linear warm-up, then inverse square root decay.

        The peak learning rate is that of the paper's base model, 7e-4. Warm-up is 4,000 steps, but
        at most a tenth of the run if its length is known.
        """
        total, warmup = 10 * TRANSFORMER_WARMUP, TRANSFORMER_WARMUP
        if total_steps is not None:
            total, warmup = total_steps, max(1, default_warmup(total_steps, TRANSFORMER_WARMUP))
        defaults: dict[str, Any] = dict(TRANSFORMER)
        schedule = WarmupDecay(
            defaults.pop("learning_rate"), total, warmup, decay=defaults.pop("decay")
        )
        return AdamW(schedule, **defaults)

    def make_objective(  # type: ignore[override]  # targets where others have labels
        self,
        data: Any,
        targets: Sequence[str] | None = None,
        *,
        validation_data: Any = None,
        **settings: Any,
    ) -> Any:
        if targets is None and DenoisedCorpus.takes(data):
            return GenerationTask.make_objective(self, data, **settings)
        if not holds_pairs(data, targets):
            if validation_data is not None:
                settings["validation_data"] = held_out_batches(self, validation_data, MAX_TOKENS)
            return GenerationTask.make_objective(self, data, targets, **settings)
        if "steps" in settings:
            held_out = None if validation_data is None else pairs_of(validation_data)
            pairs = pairs_of(data, targets)
            return PairsObjective(self, pairs, validation_data=held_out, **settings)
        names = ("max_tokens", "max_length", "seed")
        batch_options = {name: settings.pop(name) for name in names if name in settings}
        batch_options = {"max_tokens": MAX_TOKENS, **batch_options}
        epochs = settings.get("epochs", 1)
        batches = pair_batches(self, data, targets, epochs=epochs, **batch_options)
        if settings.get("steps_per_epoch") is None:
            settings["steps_per_epoch"] = int(batches.cardinality()) // epochs
        if validation_data is not None:
            max_tokens = batch_options["max_tokens"]
            settings["validation_data"] = held_out_batches(self, validation_data, max_tokens)
        return GenerationTask.make_objective(self, batches, **settings)

    @refusing_x
    def fit(  # type: ignore[override]  # pairs where Keras has x and y
        self,
        data: Any,
        targets: Sequence[str] | None = None,
        **settings: Any,
    ) -> keras.callbacks.History:
        """Trains on pairs of strings, on a corpus or on batches; compiles it if nobody did.

        With `steps`, held-out pairs are evaluated by losses and BLEU, and a run with a `model_dir`
        resumes to the same numbers. With `epochs`, and on batches, this is Keras' `fit`.

        Args:
            data: pairs or batches. Pairs are a list of (source, target), sources with `targets`,
                columns `first` and `second` as in `kbert.data.as_table`, the result of
                `kbert.text.read_pairs`, or a `kbert.data.translation.pairs.EncodedPairs`. Batches
                are a dataset, or a dict of arrays. A corpus is a folder of
                `kbert.data.prepare_corpus`, several with their shares, or text; it requires
                `steps`, takes the fields of `DenoisedSettings`, such as `noise`, and is evaluated
                on its own held-out text.
            targets: translations of the sources, in the same order.
            **settings: `validation_data`, data to evaluate on, in the forms of `data` or as a tuple
                of sources and targets; `max_tokens`, the most tokens per side of a batch, including
                padding; `max_length`, the most tokens of a text: pairs with longer ones are skipped
                and counted in the log; `seed` of the order; `epochs` and `steps_per_epoch`, or
                `steps` and the fields of `PairsSettings`; and the arguments of `Task.fit`:
                `model_dir`, `resume`, `verbose`, `callbacks`.

        Returns:
            The losses and metrics of each epoch, or of the run.

        Raises:
            TypeError: an argument is unknown.
            ValueError: the numbers of sources and targets differ, there are no pairs, or an element
                is not a pair of strings.
        """
        return GenerationTask.fit(self, data, targets, **settings)

    def evaluate(  # type: ignore[override]  # as `fit`
        self,
        x: Any = None,
        targets: Sequence[str] | None = None,
        *,
        max_tokens: int = MAX_TOKENS,
        **kwargs: Any,
    ) -> Any:
        """Computes losses and metrics on batches, or on pairs of strings; see `fit` for both.

        Args:
            x: pairs or batches, as `data` of `fit`.
            targets: translations of the sources, in the same order.
            max_tokens: most tokens per side of a batch of pairs, including padding.
            **kwargs: other arguments of Keras' `evaluate`, such as return_dict and verbose.

        Returns:
            The result of Keras' `evaluate`.
        """
        pairs = x if targets is None else (x, targets)
        return GenerationTask.evaluate(self, held_out_batches(self, pairs, max_tokens), **kwargs)
