"""Decoding with the settings of a folder: token for token the texts of transformers' `generate`.

The model is a tiny BART in PyTorch. Its step computes the whole prefix again, so that no model of
kbert is needed.
"""

import functools
import itertools
import json
import re

import numpy as np
import pytest
from keras import ops

from kbert.decoding import (
    Beam,
    Constraints,
    Greedy,
    Sampling,
    decode,
    read_generation_config,
    stream,
)
from tests.decoding.toy import texts_of

pytestmark = pytest.mark.tensorflow  # a step in PyTorch, called by an eager loop

VOCABULARY, START, STOP, PAD = 30, 2, 2, 1
IDS = {
    "decoder_start_token_id": START,
    "eos_token_id": STOP,
    "pad_token_id": PAD,
    "bos_token_id": 0,
}
BART_LARGE_CNN = {  # with a smaller max_length and min_length
    "early_stopping": True,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": STOP,
    "length_penalty": 2.0,
    "max_length": 12,
    "min_length": 5,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
}
MARIAN = {
    "bad_words_ids": [[PAD]],
    "forced_eos_token_id": STOP,
    "max_length": 12,
    "num_beams": 6,
    "renormalize_logits": True,
}
CONSTRAINTS = {
    "max_length": 12,
    "min_new_tokens": 4,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.4,
    "forced_bos_token_id": 5,
    "forced_eos_token_id": STOP,
    "bad_words_ids": [[7], [11], [STOP]],
}
# Seed, sigma and the stop token's bias of models whose texts have many lengths.
MODELS = ((4, 0.3, 3.0), (2, 0.3, 2.0), (4, 0.6, 3.0))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """PyTorch's threads and TensorFlow's wait for each other: a tiny layer takes milliseconds."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Bart:
    """A random BART with sources, driven by `generate` or by kbert's `decode`."""

    def __init__(self, seed, sigma, stop_bias, rows=4):
        import torch
        from transformers import BartConfig, BartForConditionalGeneration

        torch.manual_seed(seed)
        sides = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 16}.items()
        }
        config = BartConfig(
            vocab_size=VOCABULARY,
            d_model=16,
            max_position_embeddings=32,
            init_std=sigma,
            forced_eos_token_id=None,
            **IDS,
            **sides,
        )
        self.model = BartForConditionalGeneration(config).eval()
        self.model.final_logits_bias.normal_(0, 0.5)
        self.model.final_logits_bias[0, STOP] += stop_bias
        self.sources = torch.randint(3, VOCABULARY, (rows, 5))
        self.encoded = self.model.model.encoder(self.sources)[0].detach()

    def logits(self, prefix, rows):
        import torch

        with torch.no_grad():
            out = self.model(
                encoder_outputs=(self.encoded[torch.tensor(rows)],),
                decoder_input_ids=torch.tensor(prefix),
                use_cache=False,
            )
        return ops.convert_to_tensor(out.logits[:, -1].numpy())

    def start(self, longest):
        rows = np.arange(len(self.sources), dtype="int32")
        prefix = np.full((len(rows), 1), START, "int32")
        cache = {
            "prompt": ops.convert_to_tensor(rows),
            "decoded": ops.zeros((len(rows), longest), "int32"),
        }
        return self.logits(prefix, rows), cache, prefix

    def step(self, token_ids, cache, t):
        slots = ops.where(
            np.arange(cache["decoded"].shape[1]) == t, token_ids[:, None], cache["decoded"]
        )
        new = ops.convert_to_numpy(slots)[:, : int(t) + 1]
        prefix = np.pad(new, ((0, 0), (1, 0)), constant_values=START)
        logits = self.logits(prefix, ops.convert_to_numpy(cache["prompt"]))
        return logits, {"prompt": cache["prompt"], "decoded": slots}

    def decode(self, settings, way=decode, **changes):
        logits, cache, prefix = self.start(settings.max_new_tokens)
        return way(
            self.step,
            logits,
            cache,
            method=settings.method,
            constraints=settings.constraints,
            max_new_tokens=settings.max_new_tokens,
            stop_ids=settings.stop_ids,
            prefix=prefix,
            **changes,
        )

    def generate(self, content):
        """Texts of each row, as tuples that end with the stop token, and the scores of a beam."""
        from transformers import GenerationConfig

        given = GenerationConfig(**json.loads(json.dumps(content)))
        self.model.generation_config = GenerationConfig()
        out = self.model.generate(
            self.sources, generation_config=given, output_scores=True, return_dict_in_generate=True
        )
        results = content.get("num_return_sequences", 1)
        ids = out.sequences[:, 1:].numpy()
        stops = np.atleast_1d(content["eos_token_id"])
        texts = []
        for row in ids.tolist():
            ends = [i for i, token in enumerate(row) if token in stops]
            texts.append(tuple(row[: ends[0] + 1] if ends else row))
        rows = [texts[i : i + results] for i in range(0, len(texts), results)]
        scores = getattr(out, "sequences_scores", None)
        return rows, None if scores is None else scores.numpy().reshape(-1, results)


@functools.cache
def bart_of(number):
    return Bart(*MODELS[number])


def assert_equal_texts(bart, content):
    content = {**IDS, **content}
    texts, scores = texts_of(bart.decode(read_generation_config(content)))
    expected, expected_scores = bart.generate(content)
    if expected_scores is None:
        assert texts == expected
    else:
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-4)
        for row, (ours, theirs) in enumerate(zip(texts, expected, strict=True)):
            for ours_text, theirs_text, score in zip(ours, theirs, scores[row], strict=True):
                is_tied = np.sum(np.isclose(scores[row], score, atol=1e-4)) > 1
                assert ours_text == theirs_text or is_tied
    return texts


def fast_and_slow(cases, is_fast):
    return [pytest.param(*x, marks=[] if is_fast(*x) else pytest.mark.slow) for x in cases]


@pytest.mark.parametrize(
    ("number", "early_stopping", "length_penalty"),
    fast_and_slow(
        itertools.product(range(3), (False, True, "never"), (-1.0, 0.0, 1.0, 2.0)),
        lambda number, early_stopping, length_penalty: number == 0 and length_penalty in (-1, 1),
    ),
)
def test_a_beam_is_that_of_transformers(number, early_stopping, length_penalty):
    content = {
        "num_beams": 4,
        "num_return_sequences": 3,
        "max_length": 12,
        "early_stopping": early_stopping,
        "length_penalty": length_penalty,
    }
    assert_equal_texts(bart_of(number), content)


def test_the_rules_that_end_a_beam_give_different_texts():
    """Else the test above could not tell them apart."""
    found = {}
    for early_stopping in (False, True, "never"):
        content = {"num_beams": 4, "num_return_sequences": 3, "max_length": 12, **IDS}
        content["early_stopping"] = early_stopping
        found[early_stopping], _ = bart_of(0).generate(content)
        assert len({len(text) for row in found[early_stopping] for text in row}) > 2
    assert found[True] != found[False] != found["never"] != found[True]


CONTENTS = {
    "bart": BART_LARGE_CNN,
    "marian": MARIAN,
    "all": CONSTRAINTS,
    **{name: {"max_length": 12, name: CONSTRAINTS[name]} for name in CONSTRAINTS},
    "min_length": {"max_new_tokens": 11, "min_length": 6},
    "unigrams": {"max_new_tokens": 11, "no_repeat_ngram_size": 1},
    "stops": {"max_new_tokens": 11, "no_repeat_ngram_size": 3, "eos_token_id": [2, 9, 20]},
    "one": {"max_new_tokens": 1, "forced_bos_token_id": 5, "forced_eos_token_id": STOP},
    "penalty": {"max_new_tokens": 11, "repetition_penalty": 0.6, "renormalize_logits": True},
}


@pytest.mark.parametrize(
    ("name", "width", "number"),
    fast_and_slow(
        itertools.product(CONTENTS, (1, 2, 3, 4), range(3)),
        lambda name, width, number: (
            number == 0 and (width == 3 or (width in (1, 4) and name in ("bart", "all")))
        ),
    ),
)
def test_constraints_are_those_of_transformers(name, width, number):
    assert_equal_texts(bart_of(number), {**CONTENTS[name], "num_beams": width})


def test_a_stream_and_a_draw_obey_the_constraints():
    bart = bart_of(2)
    settings = read_generation_config({**IDS, **CONSTRAINTS})
    tokens = np.stack(list(bart.decode(settings, stream)), axis=1)
    whole = ops.convert_to_numpy(bart.decode(settings).token_ids)[:, 0]
    np.testing.assert_array_equal(tokens, whole[:, : tokens.shape[1]])
    drawn = read_generation_config({**IDS, **CONSTRAINTS, "do_sample": True})
    texts, _ = texts_of(bart.decode(drawn, seed=3))
    assert texts != texts_of(bart.decode(settings))[0]
    for (text,) in texts:
        assert text[0] == 5
        assert len(text) > 4
        assert not {7, 11} & set(text)
        pairs = list(zip((START, *text), text, strict=False))
        assert len(set(pairs)) == len(pairs)


def test_a_file_gives_the_arguments_of_decode():
    settings = read_generation_config({**IDS, **BART_LARGE_CNN, "transformers_version": "5.24.0"})
    assert settings.method == Beam(4, 2.0, normalisation="length", early_stopping=True)
    assert settings.constraints == Constraints(
        no_repeat_ngram_size=3, min_new_tokens=4, forced_first_id=0, forced_last_id=STOP
    )
    assert (settings.max_new_tokens, settings.stop_ids) == (11, (STOP,))
    assert (settings.start_id, settings.pad_id) == (START, PAD)


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ({}, {"method": Greedy(), "max_new_tokens": None, "stop_ids": (), "start_id": None}),
        ({"num_beams": None, "suppress_tokens": None}, {"method": Greedy()}),
        ({"temperature": 0.5, "typical_p": 0.5, "length_penalty": 2.0}, {"method": Greedy()}),
        ({"num_beams": 5}, {"method": Beam(5, 1.0, 1, "length", False)}),
        ({"do_sample": True}, {"method": Sampling(top_k=50)}),
        (
            {"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.7},
            {"method": Sampling(0.7, None, 0.9)},
        ),
        ({"bos_token_id": 4}, {"start_id": 4}),
        ({"bos_token_id": 4, "decoder_start_token_id": 0}, {"start_id": 0}),
        ({"eos_token_id": [3, 1]}, {"stop_ids": (3, 1)}),
        ({"max_length": 20, "max_new_tokens": 7}, {"max_new_tokens": 7}),
        ({"min_length": 9, "min_new_tokens": 3}, {"constraints": Constraints(min_new_tokens=3)}),
        ({"min_length": 1}, {"constraints": Constraints()}),
        ({"no_repeat_ngram_size": 0, "num_beam_groups": 1}, {"constraints": Constraints()}),
        ({"forced_eos_token_id": [2]}, {"constraints": Constraints(forced_last_id=2)}),
        (
            {"bad_words_ids": [[4], [2]], "eos_token_id": 2},
            {"constraints": Constraints(banned_ids=(4,))},
        ),
    ],
    ids=str,
)
def test_values_that_are_missing_have_the_defaults_of_transformers(content, fields):
    settings = read_generation_config(content)
    assert {name: getattr(settings, name) for name in fields} == fields


def test_tokens_before_the_first_new_one_count_in_lengths():
    content = {"max_length": 20, "min_length": 9}
    settings = read_generation_config(content, prefix_length=4)
    assert (settings.max_new_tokens, settings.constraints.min_new_tokens) == (16, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"suppress_tokens": [3]},
            "generation_config.json: `suppress_tokens` changes texts and is not supported by "
            "kbert.decoding; it must be None or []. Received: [3]",
        ),
        ({"encoder_no_repeat_ngram_size": 3}, "it must be None or 0. Received: 3"),
        ({"do_sample": True, "typical_p": 0.9}, "`typical_p` changes texts"),
        ({"watermarking_config": {}}, "it must be None. Received: {}"),
        (
            {"num_beans": 4, "zeal": 1},
            "every key must be an argument of `generate` in transformers 5.24. Received: "
            "num_beans, zeal",
        ),
        ({"do_sample": True, "num_beams": 2}, "`do_sample` with `num_beams` above 1"),
        ({"num_return_sequences": 2}, "`num_return_sequences` must be at most `num_beams`"),
        ({"num_beams": 0}, "`num_beams` must be an integer of at least 1. Received: 0"),
        ({"max_length": 1}, "`max_length` must be an integer of at least 2. Received: 1"),
        ({"eos_token_id": "2"}, "`eos_token_id` must be an integer of at least 0. Received: '2'"),
        ({"forced_bos_token_id": [1, 2]}, "`forced_bos_token_id` must be one token id. Received"),
        ({"bad_words_ids": [[1, 2]]}, "`bad_words_ids` must be a list of lists of one token id"),
        ({"num_beams": 2, "early_stopping": "soon"}, '`early_stopping` must be True, False or "'),
        ({"renormalize_logits": 1}, "`renormalize_logits` must be True or False. Received: 1"),
    ],
)
def test_what_is_unknown_or_not_supported_is_refused_by_name(content, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_generation_config(content)


def test_every_argument_of_transformers_is_known():
    """A new one must be sorted: does it change texts?"""
    from transformers import GenerationConfig

    names = set(vars(GenerationConfig())) - {"_commit_hash", "generation_kwargs"}
    refused = []
    for name in sorted(names):
        try:
            read_generation_config({name: "?"})
        except ValueError as error:
            if "argument of `generate`" in str(error):
                refused.append(name)
    assert not refused
