"""How texts are written, as settings."""

import pytest

from kbert.decoding import Beam, Constraints, DecodingOptions, Greedy, Sampling
from kbert.decoding.options import export_arguments


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, Greedy()),
        ({"method": "sampling"}, Sampling()),
        (
            {"method": "sampling", "temperature": 0.5, "top_k": 3, "top_p": 0.9},
            Sampling(0.5, top_k=3, top_p=0.9),
        ),
        ({"method": "beam"}, Beam()),
        (
            {"method": "beam", "beam_width": 6, "length_penalty": 0.0, "num_results": 2},
            Beam(width=6, length_penalty=0.0, num_results=2),
        ),
        (
            {"method": "beam", "normalisation": "length", "length_penalty": -1.0},
            Beam(length_penalty=-1.0, normalisation="length"),
        ),
        ({"method": "beam", "early_stopping": "true"}, Beam(early_stopping=True)),
        ({"method": "beam", "early_stopping": "false"}, Beam(early_stopping=False)),
    ],
)
def test_the_method_has_the_values_that_are_given(given, method):
    assert DecodingOptions(**given).decoding == method


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"top_k": 3},
            "top_k requires method=\"sampling\". Received: method='greedy' with top_k=3",
        ),
        ({"method": "beam", "seed": 1}, 'seed requires method="sampling".*with seed=1'),
        ({"method": "sampling", "num_results": 2}, 'num_results requires method="beam"'),
        ({"method": "beam", "beam_width": 2, "num_results": 3}, "must not exceed `width`"),
        ({"normalisation": "length"}, 'normalisation requires method="beam"'),
        ({"method": "beam", "length_penalty": -1.0}, "`length_penalty` must be .* at least 0"),
        ({"method": "beam", "early_stopping": "yes"}, "one of never, true, false"),
        ({"method": "sampling", "temperature": 0.0}, "`temperature` must be a number above 0"),
        (
            {"min_new_tokens": 4, "max_new_tokens": 3},
            "min_new_tokens must not exceed max_new_tokens. Received: min_new_tokens=4, max_new_",
        ),
        ({"no_repeat_ngram_size": 0}, "`no_repeat_ngram_size` must be a whole number of at least"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be a number above 0"),
        ({"method": "nucleus"}, "`method` must be one of greedy, sampling, beam"),
    ],
)
def test_values_of_another_method_or_out_of_range_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        DecodingOptions(**given)


def test_constraints_hold_for_every_method():
    values = {"no_repeat_ngram_size": 3, "min_new_tokens": 2, "repetition_penalty": 1.5}
    values |= {"forced_first_id": 4, "forced_last_id": 5}
    for method in ("greedy", "sampling", "beam"):
        options = DecodingOptions(method=method, **values)
        assert options.constraints == Constraints(**values)
        assert not options.is_usual
    assert DecodingOptions().constraints == Constraints()


def test_what_changes_no_text_is_as_usual():
    assert DecodingOptions(jit_compile=True).is_usual
    assert not DecodingOptions(max_new_tokens=3).is_usual


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({}, {}),
        ({"beam_width": 1}, {"method": Greedy()}),
        ({"beam_width": 3}, {"method": Beam(3)}),
        ({"early_stopping": "true"}, {"method": Beam(early_stopping=True)}),
        ({"top_k": 3, "seed": 1}, {"method": Sampling(top_k=3), "seed": 1}),
        ({"method": "greedy", "max_new_tokens": 5}, {"method": Greedy(), "max_new_tokens": 5}),
        ({"forced_first_id": 4}, {"constraints": Constraints(forced_first_id=4)}),
    ],
    ids=["none", "one", "beam", "early", "sampling", "greedy", "constraint"],
)
def test_an_export_gets_what_is_given(given, arguments):
    assert export_arguments(given) == arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": 3, "beam_width": 2}, 'requires method="'),
        ({"beam_width": 1, "length_penalty": 1.0}, 'length_penalty requires method="beam"'),
    ],
    ids=["two", "one"],
)
def test_an_export_refuses_options_of_two_methods(given, message):
    with pytest.raises(ValueError, match=message):
        export_arguments(given)
