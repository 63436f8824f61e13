"""What a SavedModel of TF Hub says about its tokenizer.

Its vocabulary lies in `assets/`. Those in TensorFlow 2 format also have a variable
`do_lower_case` (official/nlp/tools/export_tfhub_lib.py of tensorflow/models).
"""

from typing import Any

from kbert.io.paths import Path

_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def vocabulary_folder(folder: Path) -> Path | None:
    """Where the vocabulary of a SavedModel lies; None where the folder is none, or has none."""
    found = folder / "assets"
    if not (folder / "saved_model.pb").is_file() or not found.is_dir():
        return None
    return found if any(found.iterdir()) else None


def saved_settings(folder: Path) -> dict[str, Any]:
    """Arguments of the tokenizer that the variables of a SavedModel name.

    Args:
        folder: of the SavedModel.

    Returns:
        `lowercase`, or nothing: TensorFlow 1 modules keep it in their program.

    Raises:
        ValueError: the variables are damaged.
    """
    import tensorflow as tf

    prefix = folder / "variables" / "variables"
    if not prefix.with_suffix(".index").is_file():
        return {}
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        is_flag = reader.get_variable_to_dtype_map().get(_LOWER_CASE) == tf.bool
        if not is_flag or reader.get_variable_to_shape_map()[_LOWER_CASE]:
            return {}
        return {"lowercase": bool(reader.get_tensor(_LOWER_CASE))}
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ValueError(
            f"The variables of the SavedModel are damaged ({reason}). Received: {prefix}"
        ) from error
