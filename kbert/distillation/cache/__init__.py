"""What a teacher makes of each text, kept on disk: it reads a table once, and never again."""

from kbert.distillation.cache.size import CacheSize
from kbert.distillation.cache.teacher_cache import CachedRows, TeacherCache

__all__ = ["CacheSize", "CachedRows", "TeacherCache"]
