"""Decoding options of a program: those of each method, and those all methods share."""

from typing import Any

from kbert.core.options import Options, option
from kbert.decoding.constraints import Constraints
from kbert.decoding.methods import Beam, Greedy, Method, Sampling

# Method name -> class, and {option: argument of the class}.
_METHODS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "greedy": (Greedy, {}),
    "sampling": (Sampling, {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p"}),
    "beam": (
        Beam,
        {"beam_width": "width", "length_penalty": "length_penalty", "num_results": "num_results"},
    ),
}


class DecodingOptions(Options):
    """Settings of how the tokens of a text are chosen, and how many.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, or an option of another method is set.

    Example:
        >>> DecodingOptions(method="sampling", top_p=0.9).decoding
        Sampling(temperature=1.0, top_k=None, top_p=0.9)
        >>> DecodingOptions(method="greedy", top_p=0.9)
        Traceback (most recent call last):
        ValueError: top_p requires method="sampling". Received: method='greedy' with top_p=0.9
    """

    method: str = option(
        "greedy",
        help="How the next token is chosen: greedy takes the most likely one, sampling draws "
        "one, beam searches for the most likely text.",
        choices=tuple(_METHODS),
    )
    max_new_tokens: int | None = option(
        None,
        help="Maximum tokens of a text. Default: 64 for a language model, at most half of its "
        "positions; for a translator 50 more than the source.",
        at_least=1,
    )
    temperature: float | None = option(
        None,
        help="For sampling: below 1 favours likely tokens, above 1 makes texts more diverse.",
        above=0,
    )
    top_k: int | None = option(
        None, help="For sampling: draw only from this many most likely tokens.", at_least=1
    )
    top_p: float | None = option(
        None,
        help="For sampling: draw only from the most likely tokens of this total probability.",
        above=0,
        at_most=1,
    )
    seed: int | None = option(
        None,
        help="For sampling: seed of the random draws, together with the number of the text. "
        "Default: 0.",
        at_least=0,
        at_most=2**32 - 1,
    )
    beam_width: int | None = option(
        None, help="For beam: beams that are kept at each step. Default: 4.", at_least=1
    )
    length_penalty: float | None = option(
        None,
        help="For beam: texts are ranked by log P / ((5 + length) / 6) ** length_penalty. "
        "Default: 0.6.",
        at_least=0,
    )
    num_results: int | None = option(
        None, help="For beam: texts for each input, best first. Default: 1.", at_least=1
    )
    no_repeat_ngram_size: int | None = option(
        None,
        help="No sequence of this many tokens occurs twice in a text. A prompt counts as part of "
        "the text.",
        at_least=1,
    )
    min_new_tokens: int | None = option(
        None, help="Minimum tokens of a text before it may end.", at_least=1
    )
    repetition_penalty: float | None = option(
        None,
        help="Divisor of the positive logits of tokens that the text has already, and factor of "
        "the negative ones: above 1 makes repetition less likely.",
        above=0,
    )
    jit_compile: bool = option(
        False,
        help="Compile with XLA: faster if many batches have the same shape, after 5 to 15 s "
        "for each shape.",
        changes_numbers=False,
    )

    def check(self) -> None:
        for method, (_, arguments) in _METHODS.items():
            names = [*arguments, *(["seed"] if method == "sampling" else [])]
            given_names = [name for name in names if getattr(self, name) is not None]
            if given_names and method != self.method:
                raise ValueError(
                    f'{", ".join(given_names)} requires method="{method}". Received: '
                    f"method={self.method!r} with "
                    f"{', '.join(f'{name}={getattr(self, name)!r}' for name in given_names)}"
                )
        longest, least = self.max_new_tokens, self.min_new_tokens
        if longest is not None and least is not None and least > longest:
            raise ValueError(
                "min_new_tokens must not exceed max_new_tokens. Received: "
                f"min_new_tokens={least}, max_new_tokens={longest}"
            )
        _ = self.decoding  # raises if two values do not fit together

    @property
    def is_usual(self) -> bool:
        """Whether every option that can change a decoded text has its default value."""
        return all(
            getattr(self, name) == self.field_of(name).default
            for name in DecodingOptions.names()
            if name not in self.unchecked()
        )

    @property
    def decoding(self) -> Method:
        """The decoding method with these options: a `Greedy`, `Sampling` or `Beam`."""
        method_class, arguments = _METHODS[self.method]
        values = {theirs: getattr(self, ours) for ours, theirs in arguments.items()}
        return method_class(**{name: value for name, value in values.items() if value is not None})

    @property
    def constraints(self) -> Constraints:
        """The constraints with these options."""
        names = ("no_repeat_ngram_size", "min_new_tokens", "repetition_penalty")
        values = {name: getattr(self, name) for name in names}
        return Constraints(**{name: value for name, value in values.items() if value is not None})
