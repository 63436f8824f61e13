"""Constraints through the tasks that write: answers, streams, SavedModels, other runtimes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from kbert.decoding import Beam, Constraints, Decoded, Greedy
from kbert.decoding.methods import from_json, to_json
from kbert.export import load_exported
from kbert.tasks.generation.base import padded
from kbert.tasks.generation.options import GenerationOptions, TranslationOptions
from tests.tasks.generation import writing

BIGRAMS = Constraints(no_repeat_ngram_size=2)
ALL = Constraints(no_repeat_ngram_size=2, min_new_tokens=4, repetition_penalty=1.2)
PROMPTS = ["a b c a", "h", "a b c d e f g h a b c d e f g h a", "a b"]
SOURCES = ["a b c", "", "h g f e d", "b"]


def pairs_of(tokens):
    return list(itertools.pairwise(tokens))


@pytest.fixture(scope="module")
def writer():
    return writing.causal_lm(sigma=0.3)


@pytest.fixture(scope="module")
def translator():
    return writing.translator(sigma=0.3)


@pytest.mark.parametrize("method", [Greedy(), Beam(3, normalisation="length")], ids=repr)
def test_a_prompt_counts_in_n_grams(writer, method):
    prompts = writer._prompt_ids(PROMPTS, 9)
    features = dict(zip(writer.model_inputs, padded(prompts, 20, 3), strict=True))

    def repetitions(constraints):
        decoded = writer.decode_batch(
            features, method, 9, constraints=constraints, row_numbers=np.arange(len(prompts))
        )
        count = 0
        for row, prompt in enumerate(prompts):
            new = np.asarray(decoded.token_ids)[row, 0, : int(decoded.lengths[row, 0])]
            pairs = pairs_of([*prompt.tolist(), *new.tolist()])
            count += sum(pairs[i] in pairs[:i] for i in range(len(prompt) - 1, len(pairs)))
        return count

    assert repetitions(Constraints()) > 0
    assert repetitions(BIGRAMS) == 0


def test_a_text_does_not_depend_on_its_batch_and_is_streamed(writer):
    options = {"max_new_tokens": 7, "constraints": ALL}
    texts = writer.predict(PROMPTS, **options)
    for prompt, text in list(zip(PROMPTS, texts, strict=True))[:3:2]:
        assert writer.predict(prompt, **options) == [text]
        assert "".join(writer.stream(prompt, **options)) == text


def test_a_translation_is_as_long_as_it_must_be(translator):
    features = translator.pair_rows.features(translator.pair_rows.sources(SOURCES).ids, 8)
    options = {"stop_ids": tuple(range(3, 10)), "row_numbers": np.arange(4)}
    for least in (0, 6):
        decoded = translator.decode_batch(
            features, Beam(2), 9, constraints=Constraints(min_new_tokens=least), **options
        )
        shortest = int(np.min(np.asarray(decoded.lengths)))
        assert shortest > 6 if least else shortest < 6


def test_the_usual_limit_of_a_translation_grows_with_the_minimum(monkeypatch):
    translator, limits = writing.translator(), []
    monkeypatch.setattr("kbert.tasks.generation.text_to_text.LONGER", 1)

    def decode_batch(features, method, longest, *, row_numbers, **how):
        limits.append(longest)
        zeros = np.zeros((len(row_numbers), 1), "int32")
        return Decoded(zeros[..., None], zeros, zeros.astype("float32"))

    monkeypatch.setattr(translator, "decode_batch", decode_batch)
    for least in (0, 20, 31):
        translator.predict(["a"], constraints=Constraints(min_new_tokens=least))
    assert limits == [17, 20, 31]


def test_options_are_constraints(translator):
    values = {"no_repeat_ngram_size": 2, "min_new_tokens": 4, "repetition_penalty": 1.2}
    options = TranslationOptions(max_new_tokens=9, **values)
    assert options.constraints == ALL
    assert not TranslationOptions(min_new_tokens=4).is_usual
    assert TranslationOptions().constraints.is_empty
    table = {"text": SOURCES}
    answers, _ = type(translator).file_answers(translator).answer(table, options, batch_size=2)
    expected = translator.predict(SOURCES, max_new_tokens=9, constraints=ALL)
    assert [answer["translation"] for answer in answers] == expected
    assert expected != translator.predict(SOURCES, max_new_tokens=9)


def test_options_of_prompts_are_constraints(writer):
    options = GenerationOptions(no_repeat_ngram_size=2, max_new_tokens=12)
    answers, _ = type(writer).file_answers(writer).answer({"text": PROMPTS}, options, batch_size=2)
    expected = writer.predict(PROMPTS, max_new_tokens=12, constraints=BIGRAMS)
    assert [answer["continuation"] for answer in answers] == expected


@pytest.mark.slow
@pytest.mark.graphs
@pytest.mark.tensorflow
def test_a_signature_obeys_the_constraints(writer, translator):
    limits = {"max_new_tokens": 9, "constraints": ALL}
    for task, name, texts, key in (
        (writer, "generate", PROMPTS, "continuation"),
        (translator, "translate", SOURCES, "translation"),
    ):
        entry = task.signatures(**limits)[name]
        served = tf.function(entry.function, input_signature=entry.inputs)(tf.constant(texts))
        found = [text.decode() for text in served[key].numpy()[:, 0]]
        assert found == task.predict(texts, **limits)


def test_constraints_travel_to_another_process():
    for constraints in (ALL, Constraints(banned_ids=(3, 4), forced_first_id=2)):
        assert from_json(to_json(constraints)) == constraints


@pytest.mark.slow
@pytest.mark.graphs
@pytest.mark.tensorflow
def test_an_export_to_onnx_has_the_constraints(writer, tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    limits = {"max_new_tokens": 9, "method": Beam(2), "constraints": ALL}
    loaded = load_exported(writer.export(tmp_path / "out", format="onnx", **limits), threads=1)
    assert from_json(loaded.description["settings"]["constraints"]) == ALL
    assert loaded.predict(PROMPTS) == writer.predict(PROMPTS, **limits)
    with pytest.raises(ValueError, match=r"cannot be changed: .*constraints=Constraints\(no_rep"):
        loaded.predict(PROMPTS, constraints=BIGRAMS)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"min_new_tokens": 3}, "`constraints` must be a Constraints of kbert.decoding. Received"),
        (
            Constraints(min_new_tokens=9),
            "`min_new_tokens` must be at most 8, the most tokens of a text. Received: 9",
        ),
    ],
)
def test_constraints_that_do_not_fit_are_refused(writer, translator, constraints, message):
    options = {"max_new_tokens": 8, "constraints": constraints}
    for task in (writer, translator):
        with pytest.raises(ValueError, match=message):
            task.predict(["a"], **options)
        with pytest.raises(ValueError, match=message):
            task.signatures(**options)
    with pytest.raises(ValueError, match=message):
        writer.stream("a", **options)
    with pytest.raises(ValueError, match="min_new_tokens must not exceed max_new_tokens"):
        GenerationOptions(min_new_tokens=9, max_new_tokens=8)
