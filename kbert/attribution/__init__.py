"""Attributions: how much each token contributes to an answer of a task."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.attribution.attention_graph import (
        attention_flow as attention_flow,
        attention_rollout as attention_rollout,
    )
    from kbert.attribution.explain import (
        attributions as attributions,
        check_default_target as check_default_target,
        explain_table as explain_table,
        has_default_target as has_default_target,
    )
    from kbert.attribution.result import Attribution as Attribution, Attributions as Attributions
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
