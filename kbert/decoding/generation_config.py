"""Reads `generation_config.json`, the decoding settings of a Hugging Face folder.

The file has the arguments of `generate` in transformers (`generation/configuration_utils.py`,
release 5.24, which also names the defaults).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kbert.configs.base import check_count, check_flag
from kbert.decoding.constraints import Constraints
from kbert.decoding.methods import Beam, Greedy, Method, Sampling

_TOP_K = 50  # of sampling, where the file has none

# Keys that `read_generation_config` reads.
_READ = frozenset(
    "bad_words_ids bos_token_id decoder_start_token_id do_sample early_stopping eos_token_id "
    "forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens min_length "
    "min_new_tokens no_repeat_ngram_size num_beams num_return_sequences pad_token_id "
    "renormalize_logits repetition_penalty temperature top_k top_p".split()
)
# Keys without effect on the texts: how they are computed, what is returned, where the file is from.
_WITHOUT_EFFECT = frozenset(
    "_from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind "
    "assistant_ensemble_weight cache_config cache_implementation compile_config "
    "continuous_batching_config disable_compile is_assistant low_memory max_cache_len "
    "max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule output_attentions "
    "output_hidden_states output_logits output_scores prefill_chunk_size prompt_lookup_num_tokens "
    "return_dict_in_generate speculation_type target_lookbehind transformers_version use_cache "
    "use_mtp".split()
)
# Key that changes texts and is not supported -> values with which it does not. None never does.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": ([],),
    "constraints": (),
    "diversity_penalty": (0.0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_decoder_ids": ([],),
    "guidance_scale": (1.0,),
    "max_time": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "remove_invalid_values": (False,),
    "sequence_bias": (),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}
# The same for keys that only sampling reads.
_UNSUPPORTED_IN_SAMPLING: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_p": (0.0,),
    "top_h": (),
    "typical_p": (1.0,),
}


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """Decoding settings of a Hugging Face folder, as arguments of `kbert.decoding.decode`.

    Args:
        method: decoding method.
        constraints: rules that the tokens of a text must obey.
        max_new_tokens: most new tokens of a text; None if the file has no limit.
        stop_ids: token ids that end a text.
        start_id: token id that the decoder reads first, or None: `decoder_start_token_id`, else
            `bos_token_id`.
        pad_id: token id of padding, or None.
    """

    method: Method
    constraints: Constraints
    max_new_tokens: int | None
    stop_ids: tuple[int, ...]
    start_id: int | None
    pad_id: int | None


def read_generation_config(
    content: Mapping[str, Any],
    *,
    prefix_length: int = 1,
    source: str = "generation_config.json",
) -> GenerationSettings:
    """Returns the decoding settings of a `generation_config.json`.

    With them `decode` writes the texts of `generate` in transformers. Two things differ.
    transformers stops after 20 new tokens if the file has no limit; here `max_new_tokens` is None
    then. And a row that ends after another one is not filled with the pad token, but with 0.

    Args:
        content: content of the file: name of an argument -> value; None = the default.
        prefix_length: number of tokens before the first new one, which count in `max_length` and
            `min_length`: 1 for an encoder-decoder, the start token.
        source: name of the file, for error messages.

    Returns:
        The settings.

    Raises:
        ValueError: a key is unknown, or it changes texts and is not supported, or a value is out of
            range. The message names the key.

    Example:
        >>> settings = read_generation_config({
        ...     "num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "max_length": 142,
        ...     "min_length": 56, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0,
        ...     "forced_eos_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 2})
        >>> settings.method.early_stopping, settings.max_new_tokens, settings.stop_ids
        (True, 141, (2,))
        >>> settings.constraints.min_new_tokens, settings.constraints.forced_first_id
        (55, 0)
    """
    content = {key: value for key, value in content.items() if value is not None}
    try:
        _check_keys(content)
        stop_ids = _ids(content, "eos_token_id")
        return GenerationSettings(
            method=_method(content),
            constraints=_constraints(content, prefix_length, stop_ids),
            max_new_tokens=_new_tokens(content, "max", prefix_length),
            stop_ids=stop_ids,
            start_id=_id(content, "decoder_start_token_id", _id(content, "bos_token_id")),
            pad_id=_id(content, "pad_token_id"),
        )
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def method_arguments(method: Method) -> dict[str, Any]:
    """Returns the keys of a `generation_config.json` with which its reader returns a method.

    A `Beam` becomes one that divides by the length, the only kind that transformers has.

    Example:
        >>> method_arguments(Beam(2, normalisation="length", early_stopping=True))
        {'do_sample': False, 'num_beams': 2, 'length_penalty': 0.6, 'early_stopping': True, \
'num_return_sequences': 1}
    """
    if isinstance(method, Sampling):
        top_k = 0 if method.top_k is None else method.top_k
        numbers = {"temperature": method.temperature, "top_k": top_k, "top_p": method.top_p}
        return {"do_sample": True, "num_beams": 1, **numbers, "num_return_sequences": 1}
    if isinstance(method, Greedy):
        return {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
    return {
        "do_sample": False,
        "num_beams": method.width,
        "length_penalty": method.length_penalty,
        "early_stopping": method.early_stopping,
        "num_return_sequences": method.num_results,
    }


def _check_keys(content: Mapping[str, Any]) -> None:
    """Raises ValueError for keys that are unknown, or that change texts and are not supported."""
    unsupported = dict(_UNSUPPORTED)
    if content.get("do_sample"):
        unsupported |= _UNSUPPORTED_IN_SAMPLING
    for key, value in content.items():
        if key in unsupported and not any(value == neutral for neutral in unsupported[key]):
            neutral = " or ".join(map(repr, (None, *unsupported[key])))
            raise ValueError(
                f"`{key}` changes texts and is not supported by kbert.decoding; it must be "
                f"{neutral}. Received: {value!r}"
            )
    known = _READ | _WITHOUT_EFFECT | set(_UNSUPPORTED) | set(_UNSUPPORTED_IN_SAMPLING)
    unknown_keys = sorted(set(content) - known)
    if unknown_keys:
        raise ValueError(
            "every key must be an argument of `generate` in transformers 5.24. Received: "
            f"{', '.join(unknown_keys)}"
        )


def _method(content: Mapping[str, Any]) -> Method:
    width = _count(content, "num_beams", 1, minimum=1)
    results = _count(content, "num_return_sequences", 1, minimum=1)
    do_sample = content.get("do_sample", False)
    check_flag("do_sample", do_sample)
    if do_sample and width > 1:
        raise ValueError(
            "`do_sample` with `num_beams` above 1, a beam of sampled tokens, is not supported by "
            f"kbert.decoding. Received: do_sample=True, num_beams={width}"
        )
    if results > width:
        raise ValueError(
            "`num_return_sequences` must be at most `num_beams`. "
            f"Received: num_return_sequences={results}, num_beams={width}"
        )
    if width > 1:
        return Beam(
            width,
            content.get("length_penalty", 1.0),
            results,
            normalisation="length",
            early_stopping=content.get("early_stopping", False),
        )
    if not do_sample:
        return Greedy()
    return Sampling(
        content.get("temperature", 1.0),
        _count(content, "top_k", _TOP_K, minimum=0) or None,
        content.get("top_p"),
    )


def _constraints(
    content: Mapping[str, Any], prefix_length: int, stop_ids: tuple[int, ...]
) -> Constraints:
    renormalise = content.get("renormalize_logits", False)
    check_flag("renormalize_logits", renormalise)
    return Constraints(
        no_repeat_ngram_size=_count(content, "no_repeat_ngram_size", 0, minimum=0) or None,
        min_new_tokens=_new_tokens(content, "min", prefix_length) or 0,
        repetition_penalty=content.get("repetition_penalty", 1.0),
        forced_first_id=_id(content, "forced_bos_token_id"),
        forced_last_id=_id(content, "forced_eos_token_id"),
        # As in transformers, a stop token is not banned.
        banned_ids=tuple(i for i in _banned_ids(content) if i not in stop_ids),
        renormalise=renormalise,
    )


def _new_tokens(content: Mapping[str, Any], which: str, prefix_length: int) -> int | None:
    """Returns the least or the greatest number of new tokens; None if the content has neither.

    `which` is "min" or "max". The number of new tokens takes precedence over the length, which
    includes the prefix.
    """
    minimum = {"min": 0, "max": 1}[which]
    new_tokens = _count(content, f"{which}_new_tokens", None, minimum=minimum)
    length = _count(content, f"{which}_length", None, minimum=minimum and prefix_length + 1)
    if new_tokens is not None or length is None:
        return new_tokens
    return max(length - prefix_length, 0)


def _banned_ids(content: Mapping[str, Any]) -> list[int]:
    words = content.get("bad_words_ids", [])
    is_single = isinstance(words, list) and all(
        isinstance(word, list) and len(word) == 1 for word in words
    )
    if not is_single:
        raise ValueError(
            "`bad_words_ids` must be a list of lists of one token id each: words of several tokens "
            f"are not supported by kbert.decoding. Received: {words!r}"
        )
    flat = [token_id for word in words for token_id in word]
    return [*_ids({"bad_words_ids": flat}, "bad_words_ids")]


def _ids(content: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Returns the token ids of a key that has one id or a list; () without the key."""
    value = content.get(key, [])
    token_ids = value if isinstance(value, list) else [value]
    for token_id in token_ids:
        check_count(key, token_id, minimum=0)
    return tuple(token_ids)


def _id(content: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    """Returns the token id of a key that has one id, or a list of one."""
    token_ids = _ids(content, key)
    if len(token_ids) > 1:
        raise ValueError(f"`{key}` must be one token id. Received: {list(token_ids)}")
    return token_ids[0] if token_ids else default


def _count(content: Mapping[str, Any], key: str, default: Any, *, minimum: int) -> Any:
    """Returns the integer of a key; raises ValueError if it is below `minimum`."""
    if key not in content:
        return default
    check_count(key, content[key], minimum)
    return content[key]
