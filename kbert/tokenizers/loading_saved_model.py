"""The tokenizer of a SavedModel from TF Hub.

The vocabulary is in `assets/`. SavedModels in TensorFlow 2 format also have a variable
`do_lower_case` (official/nlp/tools/export_tfhub_lib.py of tensorflow/models).
"""

from typing import Any

from kbert.io.paths import Path

_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def vocabulary_folder(folder: Path) -> Path | None:
    """Returns the folder of a SavedModel's vocabulary, assets/.

    Returns None if assets/ is empty or missing, or `folder` is no SavedModel.
    """
    assets = folder / "assets"
    if not (folder / "saved_model.pb").is_file() or not assets.is_dir():
        return None
    return assets if any(assets.iterdir()) else None


def saved_settings(folder: Path) -> dict[str, Any]:
    """Reads arguments of the tokenizer from the variables of a SavedModel.

    Args:
        folder: the folder of the SavedModel.

    Returns:
        `lowercase`, or an empty dict: TensorFlow 1 modules have the setting in their graph.

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
