"""ELMo: a bidirectional language model over characters, and its layers as embeddings.

Shapes: `B` rows, `T` words, `C` characters of a word, `P` width of the projection, `L` LSTM
layers, `U` units of an LSTM, `D` = 2 directions (0 forward, 1 backward), `V` words of the softmax.
"""

import os
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.catalog.families import BILMS
from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.configs.elmo import ElmoConfig
from kbert.core import late
from kbert.core.types import DType, PathLike, Shape, Tensor
from kbert.hub import locate
from kbert.io import atomic
from kbert.io.arrays import check_finite
from kbert.io.paths import exists
from kbert.layers import BidirectionalLSTM, CharacterCNN, ScalarMix, WordSoftmax
from kbert.models.elmo.embedding import Embedder
from kbert.models.elmo.prediction import NextWords
from kbert.models.initial_values import without_drawing
from kbert.models.inputs_and_outputs import by_name
from kbert.models.keras_model import KerasModel
from kbert.models.weights import get_arrays, set_arrays
from kbert.signatures import MAX_BYTES
from kbert.tokenizers import CharacterTokenizer, WordTokenizer, load_tokenizer

INPUTS = ("character_ids", "padding_mask")


@keras.saving.register_keras_serializable(package="kbert")
class Elmo(KerasModel, keras.Model):
    """Encodes the characters of words as embeddings of each word, one for each layer.

    (Peters et al. 2018, https://arxiv.org/abs/1802.05365; bilm/model.py of allenai/bilm-tf.) The
    constructor builds the model, so it has weights at once.

    Args:
        config: sizes and options of the model.
        tokenizer: a `kbert.WordTokenizer`, whose first entries are the words of the softmax. It is
            saved in presets but not in `.keras` files. The model's inputs are characters, which
            need no vocabulary.
        mix: a `kbert.layers.ScalarMix`, whose weights become part of the model. None = the plain
            mean of the layers, which is the initial value of a mix.
        name: first part of the weights' paths.
        dtype: a Keras dtype policy or its name, e.g. "mixed_bfloat16".

    Attributes:
        character_cnn, lstm: parts of the model. `softmax` is None if the config has no vocabulary.
        characters: a `kbert.CharacterTokenizer` for words of this config's length.

    Raises:
        TypeError: the config is not an `ElmoConfig`.
        ValueError: the tokenizer does not fit the softmax.

    Example:
        >>> config = ElmoConfig(character_size=4, filters=((1, 4), (2, 8)), num_highway=1,
        ...                     lstm_size=8, projection_size=6)
        >>> elmo = Elmo(config)
        >>> [embedded.shape for embedded in elmo.embed(["The sun shines .", "So ?"])]
        [(3, 4, 12), (3, 2, 12)]
    """

    def __init__(
        self,
        config: ElmoConfig,
        *,
        tokenizer: WordTokenizer | None = None,
        mix: ScalarMix | None = None,
        name: str = "elmo",
        dtype: DType = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(config, ElmoConfig):
            raise TypeError(
                "kbert.Elmo requires an ElmoConfig, and kbert.Encoder an EncoderConfig. Received: "
                f"{config!r}"
            )
        # Keras would cast the LSTM's state, which is float32 under any policy, with the inputs.
        super().__init__(name=name, dtype=dtype, autocast=False, **kwargs)
        _check_vocabulary(tokenizer, config)
        self.config = config
        self.tokenizer = tokenizer
        self.characters = CharacterTokenizer(config.max_characters)
        self.character_cnn = CharacterCNN(
            config.character_size,
            config.filters,
            config.num_highway,
            config.projection_size,
            activation=config.activation,
            dtype=self.dtype_policy,
            name="character_cnn",
        )
        self.lstm = BidirectionalLSTM(
            config.lstm_size,
            config.projection_size,
            config.num_layers,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
            skip_connections=config.skip_connections,
            dropout=config.dropout,
            dtype=self.dtype_policy,
            name="lstm",
        )
        self.softmax = None
        if config.vocabulary_size is not None:
            self.softmax = WordSoftmax(
                config.vocabulary_size,
                config.projection_size,
                dtype=self.dtype_policy,
                name="softmax",
            )
        self.mix = mix
        self.build()
        self._embedder = Embedder(self)
        self._next_words = NextWords(self)

    def build(self, input_shape: Shape | None = None) -> None:
        self.character_cnn.build((None, None, self.config.max_characters))
        self.lstm.build((2, None, None, self.config.projection_size))
        if self.mix is not None and not self.mix.built:
            self.mix.build([(None, None, self.config.hidden_size)] * (self.config.num_layers + 1))

    @property
    def id_rows(self) -> dict[str, int]:
        return {"character_ids": self.character_cnn.num_characters + 1}  # 0 is padding

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        characters = (None, None, self.config.max_characters)
        return {"character_ids": characters, "padding_mask": (None, None)}

    def words(self, character_ids: Tensor, training: bool = False) -> Tensor:
        """Embeds words without context: (B, T, C) -> (B, T, P)."""
        return self.character_cnn(character_ids, training=training)

    def call(self, inputs: Any, state: Any | None = None, training: bool = False) -> dict[str, Any]:
        """Encodes a batch in both directions.

        Args:
            inputs: character ids (B, T, C) with 0 for padding, or a dict with "character_ids" and
                optionally "padding_mask" (B, T), 1 for a word; padding follows the words. Without a
                mask, positions with an id other than 0 are words. `elmo.characters.pad_sentences`
                returns both.
            state: (L, D, B, U + P), state that an earlier call returned; both directions continue
                from it. None = zeros.
            training: whether dropout is active.

        Returns:
            A dict: "layers", a list of L + 1 tensors (B, T, 2P) with zeros in padding: the word
            embedding twice, then the outputs of both directions concatenated; "mix" (B, T, 2P);
            "state" (L, D, B, U + P) float32, after the last word of each direction.

        Raises:
            ValueError: an input is unknown, missing or of the wrong shape.
        """
        named = self.integers(_named_inputs(inputs, self.config.max_characters))
        ids, mask = named["character_ids"], named.get("padding_mask")
        if mask is None:
            mask = ops.any(ops.not_equal(ids, 0), axis=-1)
        mask = ops.cast(mask, "int32")  # (B, T)
        words = self.words(ids, training)  # (B, T, P)
        backwards = _reversed_places(mask)
        outputs, state = self.lstm(
            ops.stack([words, _reorder(words, backwards)]),  # (D, B, T, P)
            padding_mask=ops.stack([mask, mask]),
            state=state,
            training=training,
        )
        words = words * ops.cast(mask, words.dtype)[:, :, None]
        layers = [ops.concatenate([words, words], axis=-1)]
        layers += [
            ops.concatenate([directions[0], _reorder(directions[1], backwards)], axis=-1)
            for directions in outputs
        ]
        mixed = sum(layers) / len(layers) if self.mix is None else self.mix(layers, mask)
        return {"layers": layers, "mix": mixed, "state": state}

    def compute_output_spec(
        self, inputs: Any, state: Any | None = None, training: bool = False
    ) -> dict[str, Any]:
        # Explicit, because PyTorch and JAX cannot trace an unknown length.
        ids = _named_inputs(inputs, self.config.max_characters)["character_ids"]
        batch, length, _ = ids.shape
        config = self.config
        layer = keras.KerasTensor((batch, length, config.hidden_size), dtype=self.compute_dtype)
        width = config.lstm_size + config.projection_size
        return {
            "layers": [layer] * (config.num_layers + 1),
            "mix": layer,
            "state": keras.KerasTensor((config.num_layers, 2, batch, width), dtype="float32"),
        }

    def embed(
        self, sentences: Any, stateful: bool = False, *, batch_size: int = 32
    ) -> list[np.ndarray]:
        """Embeds the words of sentences by all layers.

        Begin and end markers are added to each sentence, as in the original, and omitted from the
        result.

        Args:
            sentences: lists of words, or texts, which are split at white space.
            stateful: whether row b resumes from the state after the b-th sentence of the last
                stateful call, in both directions, as the original always does. False = each
                sentence starts from zeros.
            batch_size: number of sentences, of similar length, that are encoded together.

        Returns:
            One float32 array (L + 1, T, 2P) for each sentence; T is 0 if it has no words.

        Raises:
            TypeError: `sentences` is one text, or a sentence is neither a text nor a list of words.
            ValueError: the batch size is below 1.
        """
        return self._embedder(sentences, stateful, batch_size)

    def reset_state(self) -> None:
        """Resets the state of stateful calls of `embed`."""
        self._embedder.reset()

    def predict_next(
        self, prefix: str | list[str], top_k: int = 5
    ) -> dict[str, list[tuple[str, float]]]:
        """Predicts the word after some words, and the word before them.

        Args:
            prefix: words, or a text that is split at white space. The forward model reads it as the
                beginning of a sentence, the backward model as the end of one.
            top_k: number of predictions in each direction.

        Returns:
            "forward" and "backward", each a list of (word, probability), most probable first.

        Raises:
            ValueError: the model has no softmax or no tokenizer, or `top_k` is out of range.
        """
        return self._next_words(prefix, top_k)

    def export(  # type: ignore[override]  # Keras' is of arrays
        self, directory: PathLike, max_bytes: int = MAX_BYTES, **others: Any
    ) -> str:
        """Writes `directory/<n+1>/` for TensorFlow Serving: text or words in, embeddings out.

        It has two signatures: `embed` takes `text` (B,), strings that are split at white space, and
        `embed_words` takes `words` (B, T), strings with "" after the last word of a row. Both
        return `embeddings` (B, L + 1, T, 2P) and `mix` (B, T, 2P) with zeros after the last word,
        and `lengths` (B,), the number of words in each row.

        Args:
            directory: folder of the model; its newest version is n.
            max_bytes: largest number of bytes of a text, or of all words of a row; more raise.
            **others: arguments of Keras' `export`, which are not supported and raise.

        Returns:
            The path written.

        Raises:
            TypeError: an unsupported argument.
        """
        if others:
            raise TypeError(
                "Elmo.export writes a SavedModel and supports only the arguments `directory` and "
                "`max_bytes`; to choose a `format`, export a task on ELMo. Received: "
                f"{', '.join(f'{name}={value!r}' for name, value in others.items())}"
            )
        return late.load("export", "elmo")(self, directory, max_bytes)

    @classmethod
    def from_preset(
        cls,
        path: PathLike,
        dtype: DType = None,
        *,
        mix: ScalarMix | None = None,
        strict: bool = True,
    ) -> "Elmo":
        """Loads a model with the weights of a folder, without its heads.

        Args:
            path: a kbert folder, a folder with the `*options.json` and `*weights.hdf5` of a
                release, a zip file of one, or "hf:owner/name@revision" (see `kbert.hub.locate`).
            dtype: a Keras dtype policy or its name.
            mix: a `kbert.layers.ScalarMix` of the layers; None = their plain mean.
            strict: whether the weights must match exactly. False loads the weights whose names
                match and logs the rest.

        Returns:
            The model, with the folder's words if it has a softmax and the folder has words.

        Raises:
            FileNotFoundError: there is no such folder or model.
            ValueError: the folder is of another kind, or its weights do not fit its config.
        """
        if path in BILMS and not exists(path):
            raise FileNotFoundError(
                "ELMo's weights are on no hub that kbert supports: download the options.json and "
                "weights.hdf5 of a release into one folder, and pass that folder. Received: "
                f"{path!r}"
            )
        folder = locate(path)
        checkpoint = read_checkpoint(folder).expect(ElmoConfig)
        config = checkpoint.config
        # A release may come with words, but has no softmax over them.
        tokenizer = None if config.vocabulary_size is None else words_of(folder)
        with without_drawing():
            elmo = cls(config, tokenizer=tokenizer, mix=mix, dtype=dtype)
            arrays = checkpoint.part("elmo/")
            if mix is not None:  # its weights do not change
                arrays |= get_arrays(mix, f"elmo/{mix.name}")
            set_arrays(elmo, "elmo", arrays, checkpoint.source, strict)
        return elmo

    def save_to_preset(self, path: PathLike, format: str = "kbert") -> None:
        """Writes config, weights and words to a folder that `from_preset` reads.

        Args:
            path: the folder; created if it is missing.
            format: "kbert", or "bilm" for the original's options.json and lm_weights.hdf5, which
                have no softmax and no words.

        Raises:
            ValueError: the format is unknown, the model has a mix, the original has no such model,
                or weights or outputs are not finite. The folder is then unchanged.
        """
        if self.mix is not None:
            raise ValueError(
                "An Elmo with a mix cannot be saved as a preset: save the task, or the model "
                f"around it as a `.keras` file. Received: mix={self.mix!r}"
            )
        arrays = get_arrays(self, "elmo")
        check_finite(arrays, os.fspath(path))
        inference.check_sample(self.sample_outputs, os.fspath(path))
        with atomic.together():
            write_checkpoint(path, self.config, arrays, format)
            if self.tokenizer is not None and format == "kbert":
                self.tokenizer.save(path)

    def get_config(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "mix": keras.saving.serialize_keras_object(self.mix),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        config = dict(config)
        elmo_config = ElmoConfig.from_dict(config.pop("config"))
        trainable = config.pop("trainable", True)  # older files lack the key
        revived = {
            key: keras.saving.deserialize_keras_object(config.pop(key)) for key in ("mix", "dtype")
        }
        elmo = cls(elmo_config, **revived, **config)
        if not trainable:
            elmo.trainable = False
        return elmo


def _named_inputs(inputs: Any, characters: int) -> dict[str, Any]:
    """Returns the inputs of `Elmo.call` as a dict, after a check of names and shape.

    `inputs` are ids or a dict; `characters` is C, the characters of a word. ValueError if a name is
    unknown, the ids are missing or ragged, or their shape is not (B, T, C).
    """
    inputs = by_name(inputs, "character_ids")
    unknown = [name for name in inputs if name not in INPUTS]
    if unknown or "character_ids" not in inputs:
        raise ValueError(
            "The inputs of kbert.Elmo must be `character_ids` and optionally `padding_mask`. "
            f"Received: {', '.join(inputs)}"
        )
    shape = tuple(inputs["character_ids"].shape)
    if len(shape) != 3 or shape[-1] not in (None, characters):
        raise ValueError(
            f"`character_ids` must be of shape (batch, words, {characters}). Received: {shape}"
        )
    return inputs


def _reversed_places(mask: Tensor) -> Tensor:
    """Returns the positions (B, T) that reverse the words of each row but not its padding.

    The positions count through all rows, for `_reorder`. The reversal is its own inverse.
    """
    rows, length = ops.shape(mask)
    positions = ops.arange(length, dtype="int32")[None, :]
    lengths = ops.sum(mask, axis=1, keepdims=True)  # (B, 1)
    positions = ops.where(positions < lengths, lengths - 1 - positions, positions)
    return positions + length * ops.arange(rows, dtype="int32")[:, None]


def _reorder(x: Tensor, places: Tensor) -> Tensor:
    """Gathers words of x (B, T, P) by `places` (B, T) of `_reversed_places`: -> (B, T, P)."""
    rows, length = ops.shape(places)
    width = x.shape[-1]
    flat = ops.take(ops.reshape(x, (-1, width)), ops.reshape(places, (-1,)), axis=0)
    return ops.reshape(flat, (rows, length, width))


def _check_vocabulary(tokenizer: WordTokenizer | None, config: ElmoConfig) -> None:
    """Raises ValueError if the tokenizer has fewer words than the softmax has rows.

    Also raises for another class than `WordTokenizer`, or without a softmax; None is accepted.
    """
    if tokenizer is None:
        return
    words = tokenizer.vocabulary_size if isinstance(tokenizer, WordTokenizer) else None
    if words is None or config.vocabulary_size is None or words < config.vocabulary_size:
        raise ValueError(
            "`tokenizer` must be a kbert.WordTokenizer with a word for each row of the softmax. "
            f"Received: a {type(tokenizer).__name__} of {words} words with "
            f"vocabulary_size={config.vocabulary_size}"
        )


def words_of(folder: PathLike) -> WordTokenizer | None:
    """Returns the `WordTokenizer` of a folder, or None.

    None without tokenizer files, or for another kind: a task's folder has a `CharacterTokenizer`.
    """
    try:
        tokenizer = load_tokenizer(folder)
    except FileNotFoundError:
        return None
    return tokenizer if isinstance(tokenizer, WordTokenizer) else None
