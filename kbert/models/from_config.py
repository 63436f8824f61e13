"""Models that are saved and revived from their config alone."""

import os
from collections.abc import Collection
from typing import Any, ClassVar, Self

import keras

from kbert import inference
from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.configs.base import Config
from kbert.core import late
from kbert.core.types import DType, PathLike
from kbert.hub import locate
from kbert.io.arrays import check_finite
from kbert.models.edits import edits_of, restore_edits
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasModel
from kbert.models.weights import get_arrays, set_arrays


class FromConfig(KerasModel):
    """Mixin before `keras.Model`: presets, and saving with Keras.

    Attributes:
        config_class: class of the config, the constructor's first argument.
        prefix: first part of the weights' names in a preset.
        edits: edits that were applied to the model, see `kbert.edit`.
        pooler_is_new: Whether the pooler is newly initialised for a task's head while the other
            weights were loaded.
    """

    config_class: ClassVar[type[Config]]
    prefix: ClassVar[str]
    config: Config
    edits: tuple[Any, ...] = ()
    pooler_is_new: bool = False

    def apply_edits(self) -> None:
        """Applies the edits of the config to the built model."""
        self.edits = tuple(edits_of(self.config))
        for edit in self.edits:
            edit.apply(self)

    def check_config(self, config: Config) -> None:
        """Raises TypeError unless the config is a `config_class`."""
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"The config of kbert.{type(self).__name__} must be of the class "
                f"{self.config_class.__name__}. Received: {config!r}"
            )

    def parts(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers with weights, by the first part of the weights' names in a preset."""
        return {self.prefix: self}

    @classmethod
    def from_preset(
        cls,
        path: PathLike | keras.Model,
        dtype: DType = None,
        *,
        strict: bool = True,
        ignore: Collection[str] = (),
    ) -> Self:
        """Loads a model with the weights of a folder, without its heads.

        Args:
            path: a kbert or Hugging Face folder (config.json + model.safetensors), for an encoder
                also a KerasHub or Google folder; a zip file of one; or the name of a model:
                "bert-base-uncased", "hf:owner/name@revision" (see `kbert.hub.locate`). For an
                encoder also a KerasHub backbone.
            dtype: a Keras dtype policy or its name.
            strict: whether the weights must match exactly. False loads the weights whose names
                match and logs the rest: weights that the folder lacks stay randomly initialised,
                and additional weights of the folder are not used.
            ignore: keys of a Hugging Face `config.json` that are unknown to kbert but do not
                concern the model. Keys of other architectures, and keys named after norms, scales,
                windows and the like, raise nevertheless.

        Returns:
            The model; an encoder has a pooler if the folder has one.

        Raises:
            FileNotFoundError: there is no such folder or model.
            ConnectionError: the hub cannot be reached; the message says which files to put where.
            ValueError: the folder is of another kind, or its weights do not fit its config.
        """
        is_path = isinstance(path, str | os.PathLike)
        folder = locate(path) if is_path else path
        checkpoint = read_checkpoint(folder, ignore=ignore).expect(cls.config_class)
        arrays = checkpoint.take(f"{cls.prefix}/")
        with without_drawing():
            model = cls(checkpoint.config, dtype=dtype)
            restore_edits(model, checkpoint.edits, checkpoint.source)
            set_arrays(model, cls.prefix, arrays, checkpoint.source, strict, consume=True)
        model.weights_from = checkpoint.source
        return model

    def save_to_preset(self, path: PathLike, format: str = "kbert") -> None:
        """Writes config and weights to a folder that `from_preset` reads.

        Args:
            path: the folder; created if it is missing.
            format: format of the folder: "kbert", or "huggingface" (for transformers).

        Raises:
            ValueError: the format is unknown, the other library has no such model, or weights or
                outputs are not finite. The folder is then unchanged.
        """
        arrays, edits = get_arrays(self, self.prefix), self.variants.record()
        check_finite(arrays, os.fspath(path))
        inference.check_sample(self.sample_outputs, os.fspath(path))
        write_checkpoint(path, self.config, arrays, format, edits=edits)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, for Keras."""
        return {
            **self.variants.record(),
            "config": self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Builds a model from the dict of `get_config`."""
        config = dict(config)
        dtype = keras.saving.deserialize_keras_object(config.pop("dtype"))
        trainable = config.pop("trainable", True)  # older files lack the key
        edits = {key: config.pop(key) for key in late.TABLE["edits of a preset"] if key in config}
        model = cls(cls.config_class.from_dict(config.pop("config")), dtype=dtype, **config)
        restore_edits(model, edits, "a saved Keras model")
        if not trainable:
            model.trainable = False
        model.weights_from = "a saved Keras model"
        return model
