"""A cache on disk of a teacher's outputs, which are computed once for each text."""

from kbert.distillation.cache.size import CacheSize
from kbert.distillation.cache.teacher_cache import CachedRows, TeacherCache

__all__ = ["CacheSize", "CachedRows", "TeacherCache"]
