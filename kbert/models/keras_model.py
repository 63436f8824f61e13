"""Methods of `keras.Model` that kbert's models override."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

import keras
import numpy as np

from kbert.core import late
from kbert.core.types import PathLike
from kbert.layers.ids import assert_ids, check_ids, check_whole
from kbert.models.edits import NONE, Variants
from kbert.models.inputs_and_outputs import as_integers, by_name

# For type checkers only: the mixin is combined with keras.Model.
if TYPE_CHECKING:
    from keras import Model as _Base
else:
    _Base = object

SAVED_MODEL = "tf_saved_model"
_MASK = "_mask"  # suffix of the names of masks
_SAMPLE = 16  # tokens of the sample for which outputs are checked to be finite


class KerasEdits(_Base):
    """Mixin before `keras.Model`: kbert's versions of Keras' methods that change layers."""

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ValueError: Keras quantises only its own layers, and the model has none."""
        raise ValueError(_quantize_hint(self, mode))

    def enable_lora(self, rank: int, **options: Any) -> Self:
        """Adds the adapter "lora", like `kbert.edit.adapters.add(model, "lora", rank=rank)`.

        Args:
            rank: Rank of the low-rank products.
            **options: Further options of the adapter: `alpha`, `targets`, ….

        Returns:
            The model.

        Raises:
            TypeError: The model does not support adapters.
            ValueError: An option is unknown or out of range.
        """
        return late.load("edit of Keras", "enable_lora")(self, rank=rank, **options)


class KerasModel(KerasEdits):
    """Mixin before `keras.Model`: checks ids at the input, and overrides Keras' edits with kbert's.

    Such a model is constructed with `autocast=False`: Keras would round ids that are passed as
    floats to the half precision of a mixed policy.

    Attributes:
        vector_inputs: names of floating-point inputs, such as a memory.
        weights_from: source of the weights; None if they were randomly initialised.
        variants: The model's named edits, see `kbert.edit.adapters`.
    """

    variants: Variants = NONE
    vector_inputs: tuple[str, ...] = ()
    weights_from: str | None = None
    _asserts_ids = False

    @property
    def id_rows(self) -> dict[str, int]:
        """Name of an input -> number of rows of the table its ids index; the main input first."""
        raise NotImplementedError(f"{type(self).__name__} must define `id_rows`.")

    @property
    def traced_variant(self) -> Any:
        """Key of the active named edit; the model is traced again for each key."""
        return self.variants.key

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        """Name of an input -> its shape in an `export` without an `input_signature`."""
        raise NotImplementedError(f"{type(self).__name__} must define `exported_inputs`.")

    def integers(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Casts ids and masks of `call` to integers, and checks ids against their tables.

        Raises:
            ValueError: an id is outside of its table, if the values are known. The graph of an
                exported SavedModel raises when it is run.
        """
        rows = self.id_rows
        inputs = as_integers(inputs, rows, self.compute_dtype, self.vector_inputs)
        if self._asserts_ids:
            ids_by_name = {name: x for name, x in inputs.items() if name in rows}
            inputs |= {name: assert_ids(name, x, rows[name]) for name, x in ids_by_name.items()}
        return inputs

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs Keras' `predict`; ids outside of their tables raise before anything is computed.

        Batches of a `tf.data.Dataset` are checked when they are read. After an error, such as that
        of the model for unknown names or too many tokens, the model has its weights.
        """
        with self._keeping_weights():
            return super().predict(self.checked_ids(x), *args, **kwargs)

    @contextlib.contextmanager
    def _keeping_weights(self) -> Iterator[None]:
        """Context of Keras' `predict`, which on JAX takes the weights out of the model.

        It puts them back only at its end (Keras 3.15), not after an error. If the error is that of
        the first batch, as from the checks of `call`, their arrays are still the ones of before.
        Later ones donated those, so that only Keras has the current arrays.
        """
        is_jax = keras.backend.backend() == "jax"
        before = [(variable, variable.value) for variable in self.variables] if is_jax else []
        try:
            yield
        except BaseException:
            if before and getattr(self, "_jax_state", None):
                self.jax_state_sync()
                self._jax_state = None
            for variable, value in before:
                if variable._value is None:
                    variable.assign(value)
            raise

    def predict_on_batch(self, x: Any) -> Any:
        """Runs Keras' `predict_on_batch`; ids outside of their tables raise."""
        return super().predict_on_batch(self.checked_ids(x))

    def checked_ids(self, x: Any) -> Any:
        """Checks inputs of `predict` and returns them; a dataset then checks each batch it yields.

        `x` is ids of the main input, a dict name -> array, or a `tf.data.Dataset` of either.

        Raises:
            ValueError: ids are outside of their tables, masks are not whole numbers, or inputs
                have no names or are ragged.
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
        return by_name(x, next(iter(self.id_rows)))

    def _assert_batch(self, x: Any, *rest: Any) -> Any:
        """Adds checks of ids and masks to the graph of a dataset's batch, and returns the batch.

        `x` is ids or a dict name -> tensor; `rest`, such as labels, is returned unchanged.
        """
        checked = {
            name: assert_ids(name, ids, self.id_rows.get(name))
            if name in self.id_rows or name.endswith(_MASK)
            else ids
            for name, ids in self._named(x).items()
        }
        x = checked if isinstance(x, Mapping) else next(iter(checked.values()))
        return (x, *rest) if rest else x

    def sample_outputs(self) -> dict[str, Any]:
        """Computes outputs for a sequence of up to 16 tokens, to check whether they are finite."""
        length = min(_SAMPLE, getattr(self.config, "max_positions", _SAMPLE))
        inputs = {}
        for name, (_, _, *inner) in self.exported_inputs.items():
            x = np.ones((1, length, *(size or 1 for size in inner)), "int32")  # for masks
            if name in self.id_rows:  # ids from 0 on
                x[:] = np.arange(x.shape[-1]) % self.id_rows[name]
            inputs[name] = x
        return self(inputs)

    def save(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Runs Keras' `save`; raises before a file is opened if no config describes the model."""
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
        """Runs Keras' `export` of the model alone, from token ids to embeddings.

        A SavedModel raises for ids outside of their tables. The export of a task has text inputs.

        Args:
            filepath: Path to write to.
            format: Format: "tf_saved_model", "onnx", "openvino" or "litert".
            verbose: Whether Keras prints a message.
            input_signature: Shapes and types of the inputs, in Keras' form. None = int32 batches of
                any size and length, with the shapes of `exported_inputs`.
            **kwargs: Further arguments of Keras' `export`.
        """
        if input_signature is None:
            input_signature = [
                {
                    name: keras.InputSpec(shape=shape, dtype="int32", name=name)
                    for name, shape in self.exported_inputs.items()
                }
            ]
        # Keras exports only models that were called, as it builds models at their first call.
        shapes = self.exported_inputs.items()
        self({name: np.zeros([size or 1 for size in shape], "int32") for name, shape in shapes})
        with self._asserting(format == SAVED_MODEL and keras.backend.backend() == "tensorflow"):
            super().export(filepath, format, verbose, input_signature, **kwargs)

    @contextlib.contextmanager
    def _asserting(self, asserts: bool) -> Iterator[None]:
        """Context in which the graph of `call` checks ids against their tables, if `asserts`."""
        self._asserts_ids = asserts
        try:
            yield
        finally:
            self._asserts_ids = False


def _quantize_hint(model: Any, mode: Any) -> str:
    """Returns the message of the error that `model.quantize(mode)` raises."""
    return (
        "Keras' `quantize` rounds only Keras' own layers, and a kbert model has none: nothing "
        'would change. task.export(folder, precision="int8") writes 8-bit weights, also with '
        'format="onnx", "openvino" or "litert", and '
        "kbert.edit.quantization.quantization_aware(model) trains for them. Received: "
        f"mode={mode!r} for a {type(model).__name__}"
    )
