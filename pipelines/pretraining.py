"""The work of `kbert-pretrain`: an objective by its name, and its run."""

from absl import flags, logging

from kbert.catalog.recipe import Recipe
from kbert.core.protocols import TokenizerLike
from kbert.tasks.settings import StepsSettings
from kbert.training.strategies import make_strategy

from . import option_flags
from .causal import Causal, RememberedText
from .denoising import Denoising
from .flags import apply_recipe, departures
from .language_model import LanguageModel
from .masked_text import (
    MaskedAndCausalText,
    MaskedText,
    PermutedText,
    ReplacedTokensText,
    UniLMText,
)
from .training_run import train_objective
from .translation import Translation

# All other objectives are those of `MaskedText`.
OWN_PROGRAMS = {
    "replaced_tokens": ReplacedTokensText,
    "masked_and_causal": MaskedAndCausalText,
    "unilm": UniLMText,
    "permutation_lm": PermutedText,
    "language_model": LanguageModel,
    "causal_lm": Causal,
    "memory_lm": RememberedText,
    "denoising": Denoising,
    "translation": Translation,
}


def pretrain(options: flags.FlagValues) -> None:
    """Trains the model that the flags describe, and writes it."""
    chosen = apply_recipe(options)
    option_flags.read(StepsSettings, options)  # raises at once for contradictory settings
    strategy = make_strategy(options.strategy, options.model_devices)
    kind = OWN_PROGRAMS.get(options.objective, MaskedText)
    objective = kind.from_flags(options, strategy)
    description = None
    if chosen is not None and strategy.is_chief:
        description = describe_recipe(chosen, options, objective.tokenizer)
    train_objective(objective, options, strategy, description)


def describe_recipe(chosen: Recipe, options: flags.FlagValues, tokenizer: TokenizerLike) -> str:
    """Describes the recipe and the run's differences from it, one per line.

    Logs a warning if the recipe was trained with another kind of tokenizer.

    Args:
        chosen: the recipe.
        options: the parsed flags.
        tokenizer: tokenizer of the run.
    """
    if tokenizer.kind != chosen.tokenizer:
        logging.warning(
            "The recipe %s was trained with a %s tokenizer; this one is %s",
            *(chosen.name, chosen.tokenizer, tokenizer.kind),
        )
    changed = ", ".join(departures(options, chosen)) or "nothing"
    lines = [f"recipe {chosen.name}: {chosen.source}", f"changed (published): {changed}"]
    return "\n".join([*lines, chosen.describe()] if options.dry_run else lines)
