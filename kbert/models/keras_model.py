"""What `keras.Model` has methods for, where kbert's models have ways of their own."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import keras
import numpy as np

from kbert.core import late
from kbert.core.types import PathLike
from kbert.layers.ids import assert_ids, check_ids, check_whole
from kbert.models.edits import NONE, Variants
from kbert.models.inputs_and_outputs import as_integers

# What it stands before: its methods are there, but it is no base of the mixin.
if TYPE_CHECKING:
    from keras import Model as _Base
else:
    _Base = object

SAVED_MODEL = "tf_saved_model"
_MASK = "_mask"  # how the names of masks end
_SAMPLE = 16  # places of a row that shows whether outputs are finite


class KerasEdits(_Base):
    """Mixin before `keras.Model`: what Keras changes in its own layers, kbert does its own way."""

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses: Keras rounds its own layers, of which the model has none."""
        raise ValueError(_quantize_hint(self, mode))

    def enable_lora(self, rank: int, **options: Any) -> Self:
        """Adds the adapter "lora", as `kbert.edit.adapters.add(model, "lora", rank=rank)` does.

        Args:
            rank: Rank of the products.
            **options: The adapter's: `alpha`, `targets`, ….

        Returns:
            The model.

        Raises:
            TypeError: A model that takes no adapters.
            ValueError: An option is unknown or out of range.
        """
        return late.load("edit of Keras", "enable_lora")(self, rank=rank, **options)


class KerasModel(KerasEdits):
    """Mixin before `keras.Model`: ids are checked where they enter, and Keras' edits are kbert's.

    Such a model is made with `autocast=False`: Keras would round ids that come as floats to the
    half precision of a mixed policy.

    Attributes:
        vector_inputs: names of inputs that are no integers, such as a memory.
        weights_from: where the weights are from; None where they were drawn.
        variants: The model's named edits, see `kbert.edit.adapters`.
    """

    variants: Variants = NONE
    vector_inputs: tuple[str, ...] = ()
    weights_from: str | None = None
    _asserts_ids = False

    @property
    def id_rows(self) -> dict[str, int]:
        """Name of an input -> rows of the table that its ids are of; the main input first."""
        raise NotImplementedError(f"{type(self).__name__} must define `id_rows`.")

    @property
    def traced_variant(self) -> Any:
        """What a graph is traced for besides its inputs."""
        return self.variants.key

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        """Name of an input -> its shape: what `export` without an `input_signature` takes."""
        raise NotImplementedError(f"{type(self).__name__} must define `exported_inputs`.")

    def integers(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs of `call` with ids and masks as integers, the ids inside of their tables.

        Raises:
            ValueError: an id outside, where values are known; a graph that `export` traces raises
                when it is run.
        """
        rows = self.id_rows
        inputs = as_integers(inputs, rows, self.compute_dtype, self.vector_inputs)
        if self._asserts_ids:
            named = {name: x for name, x in inputs.items() if name in rows}
            inputs |= {name: assert_ids(name, x, rows[name]) for name, x in named.items()}
        return inputs

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' `predict`; ids outside of their tables are refused before anything is computed.

        Of a `tf.data.Dataset` each batch is checked when its turn comes.
        """
        return super().predict(self.checked_ids(x), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`; ids outside of their tables are refused."""
        return super().predict_on_batch(self.checked_ids(x))

    def checked_ids(self, x: Any) -> Any:
        """Inputs as they are, of a dataset one that checks each batch.

        Raises:
            ValueError: ids outside of their tables, or masks between whole numbers.
        """
        if hasattr(x, "element_spec"):
            import tensorflow as tf

            return x.map(tf.autograph.experimental.do_not_convert(self._assert_batch))
        for name, ids in self._named(x).items():
            if name in self.id_rows:
                check_ids(name, ids, self.id_rows[name])
            elif name.endswith(_MASK):
                check_whole(name, ids)
        return x

    def _named(self, x: Any) -> Mapping[str, Any]:
        return x if isinstance(x, Mapping) else {next(iter(self.id_rows)): x}

    def _assert_batch(self, x: Any, *rest: Any) -> Any:
        """A batch of a dataset, whose graph runs on the host."""
        named = {
            name: assert_ids(name, ids, self.id_rows.get(name))
            if name in self.id_rows or name.endswith(_MASK)
            else ids
            for name, ids in self._named(x).items()
        }
        x = named if isinstance(x, Mapping) else next(iter(named.values()))
        return (x, *rest) if rest else x

    def sample_outputs(self) -> dict[str, Any]:
        """What the model gives for a short row, which shows whether its answers are finite."""
        length = min(_SAMPLE, getattr(self.config, "max_positions", _SAMPLE))
        inputs = {}
        for name, (_, _, *inner) in self.exported_inputs.items():
            x = np.ones((1, length, *(size or 1 for size in inner)), "int32")  # of a mask
            if name in self.id_rows:  # ids of all kinds
                x[:] = np.arange(x.shape[-1]) % self.id_rows[name]
            inputs[name] = x
        return self(inputs)

    def save(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Keras' `save`; a model that no config describes is refused before a file is opened."""
        self.get_config()
        super().save(filepath, *args, **kwargs)

    def export(
        self,
        filepath: PathLike,
        format: str = SAVED_MODEL,
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Keras' `export` of the model alone: token ids in, vectors out.

        A SavedModel refuses ids outside of their tables. A task's `export` takes text.

        Args:
            filepath: Where it is written.
            format: "tf_saved_model", "onnx", "openvino" or "litert".
            verbose: Whether a message is printed.
            input_signature: Shapes and types of the inputs, as Keras takes them. None: rows of any
                number and length, int32, of `exported_inputs`.
            **kwargs: Further arguments of Keras.
        """
        if input_signature is None:
            input_signature = [
                {
                    name: keras.InputSpec(shape=shape, dtype="int32", name=name)
                    for name, shape in self.exported_inputs.items()
                }
            ]
        # Keras exports what was called before, which is when other models are built.
        shapes = self.exported_inputs.items()
        self({name: np.zeros([size or 1 for size in shape], "int32") for name, shape in shapes})
        with self._asserting(format == SAVED_MODEL and keras.backend.backend() == "tensorflow"):
            super().export(filepath, format, verbose, input_signature, **kwargs)

    @contextlib.contextmanager
    def _asserting(self, asserts: bool) -> Iterator[None]:
        self._asserts_ids = asserts
        try:
            yield
        finally:
            self._asserts_ids = False


def _quantize_hint(model: Any, mode: Any) -> str:
    """The message with which `quantize` is refused."""
    return (
        "Keras' quantize rounds Keras' own layers, and a kbert model has none: nothing would "
        'change. task.export(folder, precision="int8") writes weights of 8 bits, also with '
        'format="onnx", "openvino" or "litert", and '
        "kbert.edit.quantization.quantization_aware(model) trains for them. "
        f"Received: mode={mode!r} for a {type(model).__name__}"
    )
