"""ELECTRA's pretraining: detects which tokens a small generator has replaced.

Shapes: B rows, T tokens, P masked positions, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.checkpoints import ignoring, read_checkpoint
from kbert.configs.base import check_choice
from kbert.configs.encoder import EncoderConfig
from kbert.core import registry
from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.core.types import DType, MaybeNone, PathLike, Tensor, Tensors, Terms
from kbert.data.tables.table import Table
from kbert.heads import DiscriminatorHead, MaskedLMHead
from kbert.hub import locate
from kbert.layers import SharedEmbeddings
from kbert.layers.token_embeddings import TokenOutput
from kbert.models import Encoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import get_arrays, set_arrays
from kbert.signatures import Signature, text_tokens
from kbert.tasks.corpora import MaskedCorpus
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.losses import binary_cross_entropy, detection
from kbert.tasks.pretraining.options import ALL, DISENTANGLED, EMBEDDING_SHARING
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tasks.pretraining.sampling import row_keys, uniform_numbers
from kbert.tasks.token_losses import draw_tokens, token_losses
from kbert.tokenizers.base import Tokenizer

SHARED = ("token", "position", "segment", "norm/gamma", "norm/beta")


def generator_config(
    config: EncoderConfig, share: float = 0.25, depth: float = 1.0
) -> EncoderConfig:
    """Returns the config of a generator for a discriminator: narrower, or not as deep.

    The generator uses the discriminator's embeddings, so their widths are equal.
    (`get_generator_config` in run_pretraining.py of google-research/electra; rtd_base.json in
    experiments/language_model of microsoft/DeBERTa.)

    Args:
        config: config of the discriminator.
        share: share of the hidden width, at most 1. Published: 1/4 for ELECTRA small and large, 1/3
            for base; 1 for DeBERTa-v3.
        depth: share of the layers, at most 1. Published: 1 for ELECTRA, 1/2 for DeBERTa-v3.

    Returns:
        The generator's config, without a pooler.

    Raises:
        ValueError: `share` or `depth` is out of range, or the width is not a multiple of the number
            of heads.

    Example:
        >>> base = EncoderConfig(vocabulary_size=30522, hidden_size=768, num_layers=12,
        ...                      num_heads=12, intermediate_size=3072)
        >>> small = generator_config(base, 1 / 3)
        >>> small.hidden_size, small.num_heads, small.intermediate_size, small.embedding_size
        (256, 4, 1024, 768)
        >>> generator_config(base, 1.0, depth=0.5).num_layers
        6
    """
    num_layers = max(1, round(depth * config.num_layers))
    if not 0 < depth <= 1:
        raise ValueError(
            "depth must be above 0 and at most 1, a share of the discriminator's layers. "
            f"Received: {depth} of num_layers={config.num_layers}"
        )
    groups = config.num_layer_groups
    config = config.replace(
        num_layers=num_layers,
        num_layer_groups=None if groups is None else min(groups, num_layers),
        pooler_activation=None,
    )
    if share == 1:
        return config
    hidden_size = round(share * config.hidden_size)
    if hidden_size < 1 or share > 1:
        raise ValueError(
            "share must be above 0 and at most 1, and leave a width of at least 1. "
            f"Received: {share} of hidden_size={config.hidden_size}"
        )
    return config.replace(
        hidden_size=hidden_size,
        num_heads=max(1, hidden_size // 64),
        num_key_value_heads=None,
        intermediate_size=4 * hidden_size,
        embedding_size=config.embedding_width,
    )


def sharing(embeddings: keras.layers.Layer, config: EncoderConfig, **options: Any) -> Encoder:
    """Returns an encoder that uses another encoder's embeddings, which it neither owns nor saves.

    Args:
        embeddings: The other encoder's embeddings layer, built.
        config: The config of the new encoder.
        **options: Other arguments of the encoder's constructor.

    Raises:
        ValueError: The embeddings cannot be shared, see `SharedEmbeddings`.
    """
    encoder_class: Any = registry.get("encoder", config.kind)

    class Sharing(encoder_class):
        """Encoder with shared embeddings; its config does not record whose."""

        def _make_embeddings(self) -> keras.layers.Layer:
            """Returns a layer on the other encoder's tables, with separate dropout."""
            return SharedEmbeddings(
                embeddings,
                hidden_size=config.hidden_size,
                dropout=config.dropout,
                dtype=self.dtype_policy,
                name="embeddings",
            )

        def get_config(self) -> dict[str, Any]:
            raise ValueError(
                "An encoder that shares the embeddings of another cannot be restored from its "
                "config: save it with save_generator, which writes an independent model. "
                f"Received: {self.name!r}"
            )

        def save_to_preset(self, path: PathLike, *args: Any, **kwargs: Any) -> None:
            self.get_config()  # raises

    return Sharing(config, **options)


class ReplacedTokenDetection(EncoderTask):
    """A generator fills masks, and a discriminator detects which tokens it replaced.

    (ELECTRA, https://arxiv.org/abs/2003.10555; run_pretraining.py of google-research/electra.)
    Train with `fit` on the batches of `kbert.data.pretraining_dataset`. In ELECTRA the two models
    share the token, position and segment tables and their normalisation, which the losses of both
    train; each model has its own projection. In DeBERTa-v3 only the generator's loss trains its
    token and position tables, and the discriminator adds tables of its own to them
    (https://arxiv.org/abs/2111.09543, section 3.3).

    The generator's tokens are sampled from its softmax. A sample that equals the original token
    counts as original. No gradient flows through the sampling: the generator learns to fill masks,
    not to deceive. After training the discriminator is the model: `save_to_preset`, `predict` and
    `export` use it.

    The loss is `mlm_loss` + `weighted_rtd_loss`; the latter is the discriminator's loss, the mean
    over all tokens, times its weight. Metrics: `mlm_accuracy`; `rtd_loss`, not weighted;
    `rtd_accuracy`; `rtd_precision` and `rtd_recall` of "replaced"; `replaced_share`, the share of
    replaced tokens (a discriminator that never predicts "replaced" has accuracy
    1 - `replaced_share`).

    A batch must contain `position`, as those of the dataset do. The samples are a hash of it and of
    the row, so a run resumes exactly and does not depend on the number of devices.

    Args:
        discriminator: a `kbert.Encoder`.
        tokenizer: tokenizer of the discriminator.
        generator: config of the generator, see `generator_config`. It must match the
            discriminator's in vocabulary, positions, segments and embedding width. None for a task
            that only predicts and is not trained.
        embedding_sharing: "all" (ELECTRA), "gradient_disentangled" (DeBERTa-v3) or "separate". With
            the last two the generator begins with the discriminator's tables.
        discriminator_weight: weight of the discriminator's loss.
        seed: seed of the generator's samples.
        name: name of the model.

    Raises:
        ValueError: the vocabularies differ, or the configs do not match.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = ReplacedTokenDetection(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict(["the quick fox"])
        >>> answer["tokens"], len(answer["probabilities"])
        (['the', 'quick', 'fox'], 3)
    """

    kind = "detect_replaced"
    corpus_objective = MaskedCorpus
    shown_metrics = ("mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_precision", "rtd_recall")

    def __init__(
        self,
        discriminator: keras.Model,
        tokenizer: Tokenizer,
        *,
        generator: EncoderConfig | None = None,
        embedding_sharing: str = ALL,
        discriminator_weight: float = 50.0,
        seed: int = 0,
        name: str = "replaced_token_detection",
    ) -> None:
        super().__init__(discriminator, tokenizer, name=name)
        policy = discriminator.dtype_policy
        check_choice("embedding_sharing", embedding_sharing, EMBEDDING_SHARING)
        self.embedding_sharing = embedding_sharing
        self.discriminator_weight = discriminator_weight
        self.seed = seed
        self.detection_head = DiscriminatorHead(discriminator.config, dtype=policy)
        self.generator: Encoder | MaybeNone = None
        self.masked_lm: MaskedLMHead | MaybeNone = None
        if generator is not None:
            _check_agree(generator, discriminator.config)
            table = self._make_generator(generator)
            self.masked_lm = MaskedLMHead(
                generator, table, name="generator_masked_lm", dtype=policy
            )
        self._runner = inference.Runner(
            self._probabilities,
            *(discriminator, self.detection_head),
            assemble=lambda columns: self.build_inputs(columns["ids"]),
        )
        self._tokenize = on_cpu(self._encode)
        self.build()

    def _make_generator(self, config: EncoderConfig) -> keras.Variable:
        """Sets `generator`, made of its config; returns the token table for its masked-LM head."""
        options: dict[str, Any] = {"name": "generator", "dtype": self.encoder.dtype_policy}
        embeddings = self.encoder.embeddings
        if self.embedding_sharing == ALL:
            self.generator = sharing(embeddings, config, **options)
            return self.encoder.token_embedding
        self.generator = Encoder(config, **options)
        tables = get_arrays(self.generator.embeddings, "tables")
        theirs = get_arrays(embeddings, "tables")
        shared_names = {f"tables/{name}" for name in SHARED} & tables.keys()
        tables |= {name: theirs[name] for name in shared_names}
        set_arrays(self.generator.embeddings, "tables", tables, "the discriminator")
        if self.embedding_sharing == DISENTANGLED:
            embeddings.add_base(self.generator.embeddings)
        return self.generator.token_embedding

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "discriminator": self.detection_head}

    @property
    def settings(self) -> dict[str, Any]:
        names = ("discriminator_weight", "embedding_sharing")
        return {name: getattr(self, name) for name in names}

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Returns the logits of both models, and which tokens were replaced.

        Returns:
            `masked_lm` (B, P, V), the generator's logits; `token_ids` (B, T), the text with the
            generator's tokens; `replaced` (B, T), 1 where these differ from the original tokens;
            and `replaced_logits` (B, T), the discriminator's logits.
        """
        logits = self._generated(batch, training).logits()
        return {
            "masked_lm": logits,
            **self._detected(batch, draw_tokens(logits, self._uniform(batch)), training),
        }

    def _generated(self, batch: Tensors, training: bool) -> TokenOutput:
        """Returns what the generator's logits (B, P, V) are the product of."""
        positions = batch["mask_positions"]
        masked = self.encode(batch, training, encoder=self.generator, positions=positions)
        return self.masked_lm.token_output(masked["sequence"])

    def _uniform(self, batch: Tensors) -> Tensor:
        """Returns the random numbers (B, P) that the generator's tokens are drawn with."""
        keys = row_keys(batch["token_ids"], batch["position"], self.seed)
        return uniform_numbers(keys, batch["mask_positions"])

    def _detected(self, batch: Tensors, drawn: Tensor, training: bool) -> dict[str, Any]:
        """Returns what `call` does without logits of the generator, from its tokens (B, P)."""
        token_ids, replaced = _replace(batch, drawn)
        sequence = self.encode({**batch, "token_ids": token_ids}, training)["sequence"]
        return {
            "token_ids": token_ids,
            "replaced": replaced,
            "replaced_logits": self.detection_head(sequence),
        }

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        self.check_batch(batch)
        masked = token_losses(
            self._generated(batch, training),
            *(batch["mask_ids"], batch["mask_weights"]),
            training=training,
            uniform=self._uniform(batch),
        )
        outputs = self._detected(batch, masked.drawn, training)
        tokens = (outputs["replaced_logits"], outputs["replaced"], batch["padding_mask"])
        rtd_sum, count = rtd_loss = binary_cross_entropy(*tokens)
        losses = {
            "mlm_loss": masked.smoothed,
            "weighted_rtd_loss": (self.discriminator_weight * rtd_sum, count),
        }
        real = ops.cast(batch["padding_mask"], "float32")
        replaced = ops.sum(ops.cast(outputs["replaced"], "float32") * real)
        metrics = {
            "mlm_accuracy": masked.accuracy(),
            "rtd_loss": rtd_loss,
            **{f"rtd_{name}": pair for name, pair in detection(*tokens).items()},
            "replaced_share": (replaced, count),
        }
        return losses, metrics

    def check_batch(self, batch: Tensors) -> None:
        super().check_batch(batch)
        if self.generator is None:
            raise ValueError(
                "Training needs a generator: build the task with generator=generator_config(…). "
                "Received: a task with generator=None"
            )
        if "position" not in batch:
            raise ValueError(
                "A batch must contain `position` (B, 3), which seeds the generator's samples. "
                f"Received: {', '.join(sorted(batch))}"
            )

    def _encode(self, texts: Sequence[str | bytes]) -> Any:
        ids = self.tokenizer.encode(texts)
        return ids, ids.row_lengths()

    def _probabilities(self, features: Tensors) -> Any:
        logits = self.detection_head(self.encode(features)["sequence"])
        return ops.sigmoid(logits)[:, self.form.begin :]  # (B, T - 1): the tokens after [CLS]

    @property
    def _longest(self) -> int:
        """Most tokens of a text, without [CLS] and [SEP]."""
        return self.encoder.config.max_positions - 2

    def predict(
        self, texts: str | Sequence[str], batch_size: int = inference.BATCH_SIZE
    ) -> list[dict[str, list]]:
        """Predicts for each token of a text the probability that it was replaced.

        Args:
            texts: strings, or one. A text that is too long for the encoder is truncated at the end.
            batch_size: texts that go through the model together.

        Returns:
            For each text `{"tokens": …, "probabilities": …}`: the tokens as strings, and a float
            for each.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        answers: list[dict[str, list]] = [{} for _ in texts]
        for start, chunk in inference.chunks(texts):
            ids, lengths = self._tokenize(tf.constant(chunk, tf.string))
            lengths = np.minimum(lengths.numpy(), self._longest)
            tokens = ids.to_list()
            rows = inference.token_rows(lengths, ids=ids)
            for index, probabilities in self._runner.each(rows, batch_size):
                for row_probabilities, row in zip(probabilities, index, strict=True):
                    row_ids = tokens[row][: lengths[row]]
                    answers[start + row] = {
                        "tokens": [self.tokenizer.vocabulary[i] for i in row_ids],
                        "probabilities": row_probabilities[: len(row_ids)].tolist(),
                    }
        return answers

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures `detect_replaced`, which is also `serving_default`, and `encode`.

        Returns:
            `detect_replaced`: `text` (B,) strings -> `tokens` (B, N) strings and `probabilities`
            (B, N) that each was replaced, padded with "" and 0. A text that is too long for the
            encoder is truncated at the end. `encode`: see `EncoderTask.signatures`.
        """

        def detect_replaced(text: tf.Tensor) -> dict[str, tf.Tensor]:
            encoded = self.tokenizer.encode(text)
            features = self.build_inputs(encoded)
            lengths = tf.minimum(encoded.row_lengths(), self._longest)
            ids = features["token_ids"][:, self.form.begin :]
            tokens = tf.gather(tf.constant(self.tokenizer.vocabulary), ids)
            real = tf.sequence_mask(lengths, tf.shape(tokens)[1])
            return {
                "tokens": tf.where(real, tokens, ""),
                "probabilities": tf.where(real, self._probabilities(features), 0.0),
            }

        spec = [tf.TensorSpec([None], tf.string, "text")]
        entry = Signature(detect_replaced, spec, text_tokens(self.row_length), too_long="cut")
        return {"detect_replaced": entry, **super().signatures()}

    def save_generator(self, path: PathLike) -> None:
        """Saves the generator as a separate model, including the tables that it shares.

        `Pretraining.from_preset(path)` loads it to fill masks. `from_preset(…, generator=path)` of
        this class loads it to continue the training of both models.

        Args:
            path: folder to write to; created if missing.

        Raises:
            ValueError: the task has no generator.
        """
        if self.generator is None:
            raise ValueError("The task has no generator to save. Received: generator=None")
        encoder = Encoder(self.generator.config)
        encoder.weights_from = self.encoder.weights_from
        arrays = self._shared_arrays() | get_arrays(self.generator, "encoder")
        set_arrays(encoder, "encoder", arrays, "the generator")
        task = Pretraining(encoder, self.tokenizer, next_sentence=False)
        set_arrays(task.masked_lm, "masked_lm", get_arrays(self.masked_lm, "masked_lm"), "it")
        task.save_to_preset(path)

    def _shared_arrays(self) -> dict[str, np.ndarray]:
        """Returns name -> array of the embedding weights that both models share, for a preset.

        Names are those in the generator's preset. Empty unless `embedding_sharing` is "all".
        """
        if self.embedding_sharing != ALL:
            return {}
        prefix = "encoder/embeddings"
        arrays = get_arrays(self.encoder.embeddings, prefix)
        return {
            f"{prefix}/{n}": arrays[f"{prefix}/{n}"] for n in SHARED if f"{prefix}/{n}" in arrays
        }

    @classmethod
    def from_preset(
        cls,
        path: PathLike,
        dtype: DType = None,
        generator: str | os.PathLike | None = None,
        **settings: Any,
    ) -> Self:
        """Loads a task with the discriminator of one folder and the generator of another.

        Args:
            path: a folder that `save_to_preset` wrote, or a Hugging Face folder of an ELECTRA with
                its discriminator head.
            dtype: a Keras dtype policy or its name.
            generator: a folder that `save_generator` wrote, or a Hugging Face folder of the
                generator; None for a task that only predicts and is not trained.
            **settings: `strict` and `ignore`, see `Task.from_preset`, and constructor arguments to
                use instead of the folder's. Keys to `ignore` are the discriminator's; keys of the
                generator with these names are ignored too.

        Raises:
            FileNotFoundError: a folder does not exist.
            ValueError: the folder contains another task, its weights do not fit, or the generator's
                tables differ from the discriminator's.
        """
        if generator is None:
            return super().from_preset(path, dtype, **settings)
        with ignoring(settings.get("ignore", ())):
            checkpoint = read_checkpoint(locate(generator))
        with without_drawing():
            task = super().from_preset(path, dtype, generator=checkpoint.config, **settings)
            arrays = checkpoint.part("encoder/")
            for name, array in task._shared_arrays().items():
                generator_array: Any = arrays.pop(name, None)
                if not np.array_equal(generator_array, array):
                    raise ValueError(
                        "Generator and discriminator share their embeddings, so both folders must "
                        f"contain the same {name}. Received: other values in {checkpoint.source}"
                    )
            tables = get_arrays(task.encoder.embeddings, "tables")
            set_arrays(task.generator, "encoder", arrays, checkpoint.source)
            # The generator's tables have changed: this recomputes what the discriminator adds.
            set_arrays(task.encoder.embeddings, "tables", tables, "the discriminator")
            head = checkpoint.part("masked_lm/")
            set_arrays(task.masked_lm, "masked_lm", head, checkpoint.source)
        return task


def _check_agree(generator: Any, discriminator: Any) -> None:
    """Raises ValueError if two encoders' configs differ in the sizes of the shared embeddings."""
    names = ("vocabulary_size", "max_positions", "num_segments", "embedding_width")
    differ = [n for n in names if getattr(generator, n) != getattr(discriminator, n)]
    if differ:
        differences = ", ".join(
            f"{n}={getattr(generator, n)} and {getattr(discriminator, n)}" for n in differ
        )
        raise ValueError(
            "The generator shares the discriminator's embeddings, so their configs must agree in "
            f"{', '.join(names)}. Received: {differences}"
        )


def _replace(batch: Tensors, drawn: Tensor) -> Tensor:
    """Returns ids (B, T) with `drawn` (B, P) at the masks, and 1 where these are wrong (B, T).

    Wrong are those that differ from the original token, `mask_ids` of the batch. Every masked
    position is replaced, whatever token the batch has there, so no [MASK] remains.
    """
    positions = ops.cast(batch["mask_positions"], "int32")
    is_used = batch["mask_weights"] > 0
    drawn = ops.cast(drawn, batch["token_ids"].dtype)
    rows = ops.broadcast_to(ops.arange(ops.shape(positions)[0])[:, None], ops.shape(positions))
    # An unused slot points at column 0, [CLS], and writes back the token that is there.
    current_ids = ops.take_along_axis(batch["token_ids"], positions, axis=1)
    indices = ops.stack([ops.cast(rows, "int32"), positions], axis=-1)  # (B, P, 2)
    token_ids = _scatter(batch["token_ids"], indices, ops.where(is_used, drawn, current_ids))
    is_wrong = ops.logical_and(is_used, drawn != batch["mask_ids"])
    return token_ids, _scatter(
        ops.zeros_like(token_ids), indices, ops.cast(is_wrong, token_ids.dtype)
    )


def _scatter(table: Table, where: Tensor, values: Any) -> Tensor:
    return ops.scatter_update(table, ops.reshape(where, (-1, 2)), ops.reshape(values, (-1,)))
