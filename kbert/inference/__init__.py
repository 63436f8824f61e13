"""Inference on any number of texts: tokenised in parts, batched by length, compiled once."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.inference.batches import (
        BATCH_SIZE as BATCH_SIZE,
        as_ragged as as_ragged,
        as_rows as as_rows,
        by_length as by_length,
        check_batch_size as check_batch_size,
        next_power_of_two as next_power_of_two,
        pad as pad,
    )
    from kbert.inference.forward import (
        by_path as by_path,
        check_sample as check_sample,
        compiled as compiled,
        is_one_of_several as is_one_of_several,
    )
    from kbert.inference.runner import Runner as Runner, token_rows as token_rows
    from kbert.inference.texts import CHUNK as CHUNK, as_texts as as_texts, chunks as chunks
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
