"""Compiled functions of layers: as SavedModel signatures, and as models for other runtimes."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.serving.exported import (
        RUNTIMES as RUNTIMES,
        TOLERANCES as TOLERANCES,
        export_rows as export_rows,
        open_runtime as open_runtime,
        refuse_full as refuse_full,
    )
    from kbert.serving.requests import (
        MAX_BYTES as MAX_BYTES,
        Signature as Signature,
        text_tokens as text_tokens,
    )
    from kbert.serving.rows import RowFunction as RowFunction
    from kbert.serving.savedmodel import (
        export_saved_model as export_saved_model,
        refuse_differences as refuse_differences,
    )
    from kbert.serving.stored import StoredWeights as StoredWeights
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
