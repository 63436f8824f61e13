"""Exported models: SavedModels that take text, and models for ONNX Runtime, OpenVINO and LiteRT.

`task.export(folder, format=…)` writes one, `load_exported(folder).predict(texts)` runs it.
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.export.exported import ExportedTask as ExportedTask, load_exported as load_exported
    from kbert.export.features import export_features as export_features
    from kbert.export.folder import (
        RUNTIMES as RUNTIMES,
        TOLERANCES as TOLERANCES,
        export_rows as export_rows,
        open_runtime as open_runtime,
        refuse_full as refuse_full,
    )
    from kbert.export.savedmodel.stored import StoredWeights as StoredWeights
    from kbert.export.savedmodel.write import (
        export_saved_model as export_saved_model,
        refuse_differences as refuse_differences,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
