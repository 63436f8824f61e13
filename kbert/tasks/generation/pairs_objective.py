"""Objective that trains a translator on sentence pairs, evaluated by losses and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbert.core.late import tf
from kbert.core.options import option
from kbert.data.translation.dataset import NUM_SHAPES, translation_dataset
from kbert.data.translation.pairs import EncodedPairs, encode_pairs
from kbert.decoding.options import EvaluationOptions
from kbert.io import fingerprints
from kbert.metrics import bleu
from kbert.tasks.generation.pair_rows import equally_many
from kbert.tasks.generation.translation_batches import each_reference, with_prefix
from kbert.tasks.settings import StepsSettings
from kbert.tasks.steps_objective import StepsObjective
from kbert.text import Pairs
from kbert.training.run.phases import Phase
from kbert.training.step.state import scope_of
from kbert.training.strategies import current_strategy

# The base Transformer's (Vaswani et al. 2017, section 5.3), whose hidden size is 512.
TRANSFORMER_WARMUP = 4000
TRANSFORMER: dict[str, Any] = {
    **{"learning_rate": (512 * TRANSFORMER_WARMUP) ** -0.5, "decay": "inverse_sqrt"},
    **{"weight_decay": 0.0, "beta_2": 0.98, "epsilon": 1e-9, "bias_correction": True},
}


class PairsSettings(StepsSettings, EvaluationOptions):
    """Settings of `TextToText.fit` on pairs, when it trains for a number of `steps`.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> PairsSettings(steps=1000).max_tokens
        4096
    """

    max_tokens: int = option(
        4096, help="Largest number of tokens per side of a batch of sentence pairs.", at_least=1
    )
    max_length: int | None = option(
        None,
        help="Maximum tokens in a sentence, including its end token; pairs with longer sentences "
        "are left out. Default: the model's positions.",
        at_least=1,
    )
    num_shapes: int = option(
        NUM_SHAPES,
        help="Maximum number of batch shapes. A compiled step is compiled once for each; fewer "
        "shapes need more padding.",
        at_least=1,
    )


class PairsObjective(StepsObjective):
    """Objective on batches of sentence pairs with at most `max_tokens` tokens per side.

    Args:
        task: a `TextToText`.
        pairs: (source, target) pairs, for example from `kbert.text.read_pairs`; a target may be a
            list of references.
        validation_data: held-out (source, target) pairs; None = no evaluation.
        **settings: fields of `PairsSettings`, and `model` and `notes` of `StepsObjective`.

    Raises:
        TypeError: an argument is unknown, or `steps` is missing.
        ValueError: settings or pairs do not fit the model.
    """

    settings = PairsSettings
    usual_warmup = TRANSFORMER_WARMUP

    def usual(self) -> dict[str, Any]:
        return dict(TRANSFORMER)

    def __init__(
        self,
        task: Any,
        pairs: Iterable[tuple[str, str]],
        *,
        validation_data: Iterable[tuple[str, str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(task, **settings)
        self.pairs = {"train": pairs, "held_out": validation_data}
        self._encoded: dict[str, EncodedPairs] = {}
        options, longest = self.options, task.model.max_length
        length = task.pair_length if options.max_length is None else options.max_length
        self.plan = [
            Phase(
                sequence_length=length,
                batch_size=None,
                first_step=0,
                steps=options.steps,
                batch_tokens=options.max_tokens,
            )
        ]
        self._check(length, longest)
        self.scores = self._bleu()  # type: ignore[method-assign]

    @property
    def why_no_evaluation(self) -> str | None:
        return "no held-out pairs" if self.pairs["held_out"] is None else None

    def data(self) -> Mapping[str, Any]:
        return {"tokenizer": self.task.tokenizer.checksum, "pairs": self._identity()}

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        length = phase.sequence_length
        framing = self.task.framing
        if split not in self._encoded:
            self._encoded[split] = encode_pairs(
                with_prefix(self.task.prefix, each_reference(self.pairs[split])),
                self.task.tokenizer,
                max_length=framing.longest_text(length),
            )
        order = {"seed": self.options.seed} if split == "train" else {"shuffle": False}
        return translation_dataset(
            self._encoded[split],
            self.task.tokenizer,
            max_tokens=self.options.max_tokens,
            max_length=length,
            framing=framing,
            num_shapes=self.options.num_shapes,
            row_multiple=self.row_multiple,
            masked_share=self.task.masked_share,
            **order,
            **stream,
        )

    @property
    def row_multiple(self) -> int:
        """Number by which a host's rows of a batch are divisible: devices times micro-batches."""
        with scope_of(self.task):
            strategy = current_strategy()
        micro_batches = self.model.micro_batches if self.is_compiled else self.options.micro_batches
        return strategy.num_replicas // strategy.num_hosts * micro_batches

    def _check(self, length: int, longest: int) -> None:
        """Raises ValueError if the settings of lengths do not fit the model or the devices.

        `length` is `max_length` or its default; `longest` is the model's max_positions.
        """
        if length > longest:
            raise ValueError(
                "max_length must be at most the model's max_positions. Received: "
                f"max_length={length}, max_positions={longest}"
            )
        if self.options.max_tokens < length * self.row_multiple:
            raise ValueError(
                "`max_tokens` must be at least `max_length` (default: the model's max_positions) "
                "for each device and micro-batch. Received: "
                f"max_tokens={self.options.max_tokens}, {self.row_multiple} x {length} tokens"
            )
        self.dataset(self.plan[0], "train")  # raises for what it does not accept

    def _identity(self) -> dict[str, Any]:
        """Returns a dict that identifies the training pairs, without paths and times of files."""
        pairs = self.pairs["train"]
        if not isinstance(pairs, Pairs):
            sides = (self._encoded["train"].source, self._encoded["train"].target)
            arrays = [array for side in sides for array in (side.ids.numpy(), side.lengths)]
            return {"checksum": fingerprints.crc32(arrays)}
        identity = pairs.identity()
        if "files" in identity:
            del identity["name"]
            volatile_keys = ("name", "mtime_ns")
            identity["files"] = [
                {k: x for k, x in file.items() if k not in volatile_keys}
                for file in identity["files"]
            ]
        return identity

    def _bleu(self) -> Callable[[], dict[str, float]]:
        """Returns a function that translates the held-out pairs and returns {"bleu": score}.

        Without held-out data the function returns {}. Raises ValueError now if there are no
        held-out pairs, or a source is too long for the model.
        """
        held_out = self.pairs["held_out"]
        if held_out is None:
            return dict
        name, pairs = getattr(held_out, "name", "validation_data"), list(held_out)
        if not pairs:
            raise ValueError(f"BLEU needs held-out pairs. Received: none in {name}")
        sources, targets = zip(*pairs, strict=True)
        references = equally_many(targets)
        try:
            # Fail early: the first evaluation may be hours away.
            self.task.pair_rows.sources(sources)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        method = self.options.search
        self.task.decoding_settings(method)

        def scores() -> dict[str, float]:
            answers = self.task.predict(sources, method=method, verbose=0)
            translations = [x if isinstance(x, str) else x[0] for x in answers]  # the best
            return {"bleu": bleu(translations, references).score}

        return scores
