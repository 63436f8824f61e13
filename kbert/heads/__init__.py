"""Small layers on the outputs of an encoder."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.heads.discriminator import DiscriminatorHead as DiscriminatorHead
    from kbert.heads.linear import (
        ChoiceHead as ChoiceHead,
        SentenceHead as SentenceHead,
        SpanHead as SpanHead,
        TokenHead as TokenHead,
    )
    from kbert.heads.masked_lm import MaskedLMHead as MaskedLMHead, TokenLogits as TokenLogits
    from kbert.heads.span_boundary import SpanBoundaryHead as SpanBoundaryHead
    from kbert.heads.token_features import TokenFeatures as TokenFeatures
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
