"""A disk cache of a teacher's outputs, which are computed once per text."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.distillation.cache.size import CacheSize as CacheSize
    from kbert.distillation.cache.teacher_cache import (
        CachedRows as CachedRows,
        TeacherCache as TeacherCache,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
