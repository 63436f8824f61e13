"""Decoding options of a program: those of each method, and those all methods share."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kbert.core.options import Options, option
from kbert.decoding.constraints import Constraints
from kbert.decoding.methods import NORMALISATIONS, Beam, Greedy, Method, Sampling

# Method name -> class, and {option: argument of the class}.
_METHODS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "greedy": (Greedy, {}),
    "sampling": (Sampling, {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p"}),
    "beam": (
        Beam,
        {
            **{"beam_width": "width", "length_penalty": "length_penalty"},
            **{"normalisation": "normalisation", "early_stopping": "early_stopping"},
            "num_results": "num_results",
        },
    ),
}
_EARLY_STOPPING: dict[str, bool | str] = {"never": "never", "true": True, "false": False}


class BeamOptions(Options):
    """Settings of a beam search.

    Args:
        {options}
    """

    beam_width: int | None = option(
        None, help="For beam: beams that are kept at each step. Default: 4.", at_least=1
    )
    length_penalty: float | None = option(
        None,
        help="For beam: exponent a of the length penalty, see --normalisation. Default: 0.6.",
    )
    normalisation: str | None = option(
        None,
        help="For beam: score that ranks texts. wu: log P / ((5 + length) / 6) ** a; length: log P "
        "/ length ** a, as in fairseq and transformers. Default: wu.",
        choices=NORMALISATIONS,
    )
    early_stopping: str | None = option(
        None,
        help="For beam: when the search ends. never: when no better text is possible. true: when "
        "as many texts as beams have ended. false: also when the best unfinished text would be "
        "worse than these if it ended now. Default: never.",
        choices=tuple(_EARLY_STOPPING),
    )

    def _method(self, name: str) -> Any:
        """Returns the decoding method `name` with its options that are not None."""
        method_class, arguments = _METHODS[name]
        values = {theirs: getattr(self, ours, None) for ours, theirs in arguments.items()}
        if self.early_stopping is not None and "early_stopping" in values:
            values["early_stopping"] = _EARLY_STOPPING[self.early_stopping]
        return method_class(**{name: value for name, value in values.items() if value is not None})


class EvaluationOptions(BeamOptions):
    """Settings of how translations are decoded that are only measured.

    Args:
        {options}

    Example:
        >>> EvaluationOptions(beam_width=2).search.width, EvaluationOptions(beam_width=1).search
        (2, Greedy())
    """

    beam_width: int | None = BeamOptions.with_default(
        "beam_width",
        None,
        help="Beam width of the translations that BLEU is measured on; 1: greedy. Default: as the "
        "task answers, or 4 with another setting of a beam.",
        changes_numbers=False,
    )
    length_penalty: float | None = BeamOptions.with_default(
        "length_penalty", None, changes_numbers=False
    )
    normalisation: str | None = BeamOptions.with_default(
        "normalisation", None, changes_numbers=False
    )
    early_stopping: str | None = BeamOptions.with_default(
        "early_stopping", None, changes_numbers=False
    )

    @property
    def search(self) -> Method | None:
        """The decoding method with these options; None = that of the task."""
        if self.beam_width == 1:
            return Greedy()
        is_set = any(getattr(self, name) is not None for name in BeamOptions.names())
        return self._method("beam") if is_set else None


class TextOptions(BeamOptions):
    """Settings that the tokens of a text depend on: how they are chosen, and how many.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, or an option of another method is set.

    Example:
        >>> TextOptions(method="sampling", top_p=0.9).decoding
        Sampling(temperature=1.0, top_k=None, top_p=0.9)
        >>> TextOptions(method="greedy", top_p=0.9)
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
        "positions; for a translator 50 more than the source, in an export all positions.",
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
        "Default: 0, in an export a new one for each request.",
        at_least=0,
        at_most=2**32 - 1,
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
    forced_first_id: int | None = option(
        None, help="Id of the token that every text begins with.", at_least=0
    )
    forced_last_id: int | None = option(
        None,
        help="Id of the token that a text of --max_new_tokens tokens ends with.",
        at_least=0,
    )

    def check(self) -> None:
        for method in _METHODS:
            given_names = [name for name in _options_of(method) if getattr(self, name) is not None]
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
            getattr(self, name) == self.field_of(name).default for name in TextOptions.names()
        )

    @property
    def decoding(self) -> Method:
        """The decoding method with these options: a `Greedy`, `Sampling` or `Beam`."""
        return self._method(self.method)

    @property
    def constraints(self) -> Constraints:
        """The constraints with these options."""
        names = (field.name for field in dataclasses.fields(Constraints))
        values = {name: getattr(self, name) for name in names if name in TextOptions.names()}
        return Constraints(**{name: value for name, value in values.items() if value is not None})


class DecodingOptions(TextOptions):
    """Settings of how a text is decoded: those its tokens depend on, and how they are computed.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, or an option of another method is set.

    Example:
        >>> DecodingOptions(method="beam", normalisation="length", early_stopping="true").decoding
        Beam(width=4, length_penalty=0.6, num_results=1, normalisation='length', \
early_stopping=True)
    """

    jit_compile: bool = option(
        False,
        help="Compile with XLA: faster if many batches have the same shape, after 5 to 15 s "
        "for each shape.",
        changes_numbers=False,
    )


def export_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of `Task.export` for some options; for all others the task has defaults.

    Without `method` the options imply it: "beam" or "sampling" if one of its options is given;
    `beam_width=1` is "greedy".

    Args:
        given: fields of `TextOptions` -> values.

    Raises:
        ValueError: a value is out of range, or options are of different methods.

    Example:
        >>> export_arguments({"min_new_tokens": 3})["constraints"].min_new_tokens
        3
        >>> export_arguments({"beam_width": 1, "max_new_tokens": 9})
        {'max_new_tokens': 9, 'method': Greedy()}
    """
    given = dict(given)
    implied = [name for name in _METHODS if not given.keys().isdisjoint(_options_of(name))]
    if "method" not in given and given.get("beam_width") == 1:
        del given["beam_width"]
        implied = ["greedy"]
    options = TextOptions(**{"method": next(iter(implied), "greedy"), **given})
    arguments: dict[str, Any] = {
        name: given[name] for name in ("max_new_tokens", "seed") if name in given
    }
    if implied or "method" in given:
        arguments["method"] = options.decoding
    if not options.constraints.is_empty:
        arguments["constraints"] = options.constraints
    return arguments


def _options_of(method: str) -> list[str]:
    """Returns the options that only this method reads."""
    return [*_METHODS[method][1], *(["seed"] if method == "sampling" else [])]
