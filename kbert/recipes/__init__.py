"""How the models of the family were pretrained, as published."""

from kbert.recipes.described import OBJECTIVES, SENTENCE_OBJECTIVES, Recipe
from kbert.recipes.published import RECIPES, recipe, table

__all__ = ["OBJECTIVES", "RECIPES", "SENTENCE_OBJECTIVES", "Recipe", "recipe", "table"]
