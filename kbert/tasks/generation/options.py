"""Settings of the tasks and programs that generate text."""

from collections.abc import Mapping
from typing import Any

from kbert.core.options import option
from kbert.decoding.options import DecodingOptions
from kbert.tasks.fine_tuning.options import RowOptions


class GenerationOptions(DecodingOptions):
    """Settings of how a text is continued, and where it ends.

    Args:
        {options}
    """

    stop: tuple[str, ...] = option(
        (),
        help="Text that also ends a continuation, which is cut off before it. May be repeated.",
        repeated=True,
    )


class TranslationOptions(DecodingOptions):
    """Settings of how a translation is decoded; the default is a beam of width 4.

    Args:
        {options}
    """

    method: str = DecodingOptions.with_default("method", "beam")


class TextToTextOptions(RowOptions):
    """Settings of `TextToText`.

    Args:
        {options}
    """

    max_length: int | None = option(
        None,
        help="Maximum tokens of a source, special tokens included. None: the model's maximum.",
        at_least=4,
    )
    max_target_length: int | None = option(
        None,
        help="Maximum tokens of a target, special tokens included; longer ones are truncated. "
        "None: the model's maximum.",
        at_least=4,
    )
    prefix: str = option(
        "",
        help="Text before every source, which tells a model of several tasks what to do, such as "
        'T5\'s "summarize: ".',
    )
    long_sources: str = option(
        "truncate",
        help="What happens to sources of more than max_length tokens: truncate drops their end, "
        "windows answers one part after the other and joins the answers by line breaks (training "
        "truncates), refuse raises an error that names the text.",
        choices=("truncate", "windows", "refuse"),
    )
    label_smoothing: float = option(
        0.0,
        help="Probability mass that targets give to all other tokens.",
        at_least=0,
        below=1,
        of_rows=False,
    )
    beam_width: int | None = option(
        None,
        help="Beam width of answers and evaluations; 1: greedy. None: that of `generation`, else "
        "1.",
        at_least=1,
        of_rows=False,
    )
    generation: Mapping[str, Any] | None = option(
        None,
        help="How answers are decoded, and the decoder's start token, by the keys of Hugging "
        "Face's generation_config.json, such as num_beams, no_repeat_ngram_size, max_length and "
        "decoder_start_token_id.",
        flag=False,
        of_rows=False,
    )
    special_tokens: str = option(
        "end",
        help='Special tokens of sources and targets. end: only the "sep" token after a text, as in '
        "the Transformer; all: those that the tokenizer puts around a text, as in models of "
        "Hugging Face (BART, mBART).",
        choices=("end", "all"),
        flag=False,
    )


class TranslatorOptions(TextToTextOptions):
    """Settings of `Translator`.

    Args:
        {options}
    """

    long_sources: str = TextToTextOptions.with_default("long_sources", "refuse")
    label_smoothing: float = TextToTextOptions.with_default("label_smoothing", 0.1)


class UniLMTranslatorOptions(TranslatorOptions):
    """Settings of `UniLMTranslator`.

    Args:
        {options}
    """

    masked_share: float = option(
        0.7,
        help="Share of a target's tokens that are masked in training.",
        above=0,
        at_most=1,
    )
