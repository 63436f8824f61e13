"""Changes to a built model from outside: adapters, pruning, movement scores, 8-bit rounding."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.edit import adapters as adapters
    from kbert.edit.base import Edit as Edit
    from kbert.edit.movement import Movement as Movement
    from kbert.edit.pruned import Pruned as Pruned
    from kbert.edit.rounding import Rounding as Rounding
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
