"""What every package of kbert uses: options, registered names, types. No TensorFlow, no Keras."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.core.options import Options as Options, option as option
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
