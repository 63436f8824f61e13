"""Constraints on the tokens of a text: values, which `constraining` applies.

Programs make them from flags, so nothing here needs Keras.
"""

import dataclasses

from kbert.configs.base import check_count, check_flag, check_positive


@dataclasses.dataclass(frozen=True)
class Constraints:
    """Rules that the tokens of a text must obey, for every decoding method.

    A step applies them to the logits, a `Beam` to the log-probabilities. If no token is left, the
    lowest id is chosen, and a beam ends without a text.

    A score remains the log-probability that the model gives, with three exceptions: a forced token
    adds 0; a `Beam` scores penalised log-probabilities; with `renormalise` the probabilities are
    those among the tokens that are left.

    Args:
        no_repeat_ngram_size: no sequence of this many tokens occurs twice in a row; None = no
            limit. The tokens before the first new one count too: the start token of an
            encoder-decoder, or the prompt of a decoder (Paulus et al. 2017,
            https://arxiv.org/abs/1705.04304, section 2.5, with 3).
        min_new_tokens: number of new tokens before which no stop token is chosen.
        repetition_penalty: divisor of the positive logits and factor of the negative ones, for each
            token that the row has; above 1 makes repetition less likely (Keskar et al. 2019,
            https://arxiv.org/abs/1909.05858, section 4.1). 1 = none.
        forced_first_id: token id that every text begins with, even if it is banned.
        forced_last_id: token id that a text of `max_new_tokens` tokens ends with, even if it is
            banned.
        banned_ids: token ids that are never chosen, in addition to `banned_ids` of `decode`.
        renormalise: scores are log-probabilities among the tokens that are left, which sum to 1.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Constraints(no_repeat_ngram_size=3).is_empty, Constraints().is_empty
        (False, True)
    """

    no_repeat_ngram_size: int | None = None
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    forced_first_id: int | None = None
    forced_last_id: int | None = None
    banned_ids: tuple[int, ...] = ()
    renormalise: bool = False

    def __post_init__(self) -> None:
        if self.no_repeat_ngram_size is not None:
            check_count("no_repeat_ngram_size", self.no_repeat_ngram_size, minimum=1)
        check_count("min_new_tokens", self.min_new_tokens, minimum=0)
        check_positive("repetition_penalty", self.repetition_penalty)
        for name in ("forced_first_id", "forced_last_id"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=0)
        for token_id in self.banned_ids:
            check_count("banned_ids", token_id, minimum=0)
        object.__setattr__(self, "banned_ids", tuple(self.banned_ids))
        check_flag("renormalise", self.renormalise)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is constrained."""
        return self == FREE

    @property
    def reads_tokens(self) -> bool:
        """Whether a constraint depends on the tokens that a row has so far."""
        return self.no_repeat_ngram_size is not None or self.repetition_penalty != 1.0

    def forced(self, longest: int) -> list[tuple[int, int]]:
        """Returns (index of the new token, its forced id) pairs, for at most `longest` tokens."""
        ids = ((0, self.forced_first_id), (longest - 1, self.forced_last_id))
        return [(index, token_id) for index, token_id in ids if token_id is not None]


FREE = Constraints()
