"""What a student begins as: copies of layers, embeddings, heads; and what cannot begin so."""

import keras
import numpy as np
import pytest

import kbert
from kbert.edit import adapters
from kbert.models.weights import get_arrays
from kbert.tasks import MultipleChoice, Pretraining, TextClassifier, TextRegressor
from tests.harness import assert_close, randomise, tiny_config, tiny_inputs, to_numpy


def make_encoder(**changes):
    encoder = kbert.Encoder(tiny_config(num_layers=6, **changes))
    randomise(encoder)
    return encoder


@pytest.fixture(scope="module")
def teacher():
    return make_encoder()


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary[:40])


def make_task(kind, encoder, tokenizer, **options):
    task = kind(encoder, tokenizer, **options)
    randomise(task, seed=3)
    return task


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


def assert_layers(small, teacher, layers):
    """Layer i of the one is layer `layers[i]` of the other, weight by weight."""
    assert small.config.num_layers == len(layers)
    pairs = zip(small.layer_blocks, layers, strict=True)
    for ours, layer in pairs:
        theirs = teacher.layer_blocks[layer]
        assert ours is not theirs
        assert_equal(get_arrays(ours, "x"), get_arrays(theirs, "x"))


@pytest.mark.parametrize(
    ("count", "init", "wanted"),
    [
        (3, "every_other", [0, 2, 4]),
        (4, "every_other", [0, 1, 3, 4]),
        (None, "every_other", [0, 1, 2, 3, 4, 5]),
        (2, [5, 0], [5, 0]),
        (7, [0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5, 5]),  # deeper
    ],
)
def test_layers_are_copied(teacher, count, init, wanted):
    small = kbert.student(teacher, count, init)
    assert_layers(small, teacher, wanted)
    for part in ("embeddings", "pooler"):
        arrays = (get_arrays(getattr(model, part), part) for model in (small, teacher))
        assert_equal(*arrays)


def test_the_published_layers_of_distilbert():
    """A dozen layers and six of them (README of transformers' research_projects/distillation)."""
    large = kbert.Encoder(tiny_config(num_layers=12, hidden_size=8, intermediate_size=8))
    randomise(large)
    small = kbert.student(large, 6, [0, 2, 4, 7, 9, 11], num_segments=0, pooler_activation=None)
    assert_layers(small, large, [0, 2, 4, 7, 9, 11])
    assert small.pooler is None
    assert not small.config.num_segments


def test_a_copy_is_its_own(teacher):
    before = get_arrays(teacher, "encoder")
    same = kbert.student(teacher)
    inputs = tiny_inputs(teacher.config)
    assert_close(*(to_numpy(model(inputs)["sequence"]) for model in (same, teacher)), 0.0)
    randomise(same, seed=9)
    assert_equal(get_arrays(teacher, "encoder"), before)


@pytest.mark.parametrize("embedding_size", [None, 8])
def test_without_segments_a_single_text_has_the_same_embeddings(embedding_size):
    teacher = make_encoder(embedding_size=embedding_size)
    small = kbert.student(teacher, 2, num_segments=0, max_positions=12)
    assert small.config.max_positions == 12
    inputs = tiny_inputs(teacher.config)
    single = {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
    theirs = teacher(single, return_hidden_states=True)["hidden_states"][0]
    del single["segment_ids"]
    ours = small(single, return_hidden_states=True)["hidden_states"][0]
    assert_close(to_numpy(ours), to_numpy(theirs), 1e-5)


@pytest.mark.parametrize(
    ("groups", "count", "changes", "wanted"),
    [
        (1, 3, {}, [0, 0, 0]),
        (2, 4, {}, [0, 0, 3, 3]),  # six layers, three of each group
        (3, 2, {}, [0, 3]),
        (2, 3, {"num_layer_groups": None}, [0, 2, 4]),  # shared no more
    ],
)
def test_layers_that_share_weights(groups, count, changes, wanted):
    albert = make_encoder(num_layer_groups=groups, embedding_size=8)
    small = kbert.student(albert, count, **changes)
    assert_layers(small, albert, wanted)
    if not changes:
        assert small.config.num_layer_groups == min(groups, count) == len(small.blocks)
    inputs = tiny_inputs(albert.config)
    states = [
        to_numpy(model(inputs, return_hidden_states=True)["hidden_states"][0])
        for model in (small, albert)
    ]
    assert_close(*states, 0.0)


def test_a_random_student_takes_nothing_over(teacher):
    keras.utils.set_random_seed(1)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_heads": 2}
    small = kbert.student(teacher, 2, "random", **sizes)
    keras.utils.set_random_seed(1)
    drawn = kbert.Encoder(teacher.config.replace(num_layers=2, **sizes))
    assert_equal(get_arrays(small, "encoder"), get_arrays(drawn, "encoder"))


def test_a_pooler_that_the_teacher_lacks_is_new():
    small = kbert.student(make_encoder(pooler_activation=None), 2, pooler_activation="tanh")
    assert small.pooler is not None


def test_precision_is_the_teachers_or_asked_for(teacher):
    assert kbert.student(teacher, 2).dtype_policy.name == "float32"
    assert kbert.student(teacher, 2, dtype="mixed_bfloat16").dtype_policy.name == "mixed_bfloat16"
    mixed = kbert.Encoder(tiny_config(), dtype="mixed_bfloat16")
    assert kbert.student(mixed, 1).dtype_policy.name == "mixed_bfloat16"


def test_a_task_keeps_kind_settings_and_heads(teacher, tokenizer):
    settings = {"labels": ["a", "b", "c"], "max_length": 20, "doc_stride": 4, "dropout": 0.3}
    task = make_task(TextClassifier, kbert.student(teacher), tokenizer, **settings)
    small = kbert.student(task, 2, [5, 1], max_positions=16)
    assert type(small) is TextClassifier
    assert small.tokenizer is tokenizer
    assert small.settings == {**task.settings, "max_length": 16}
    assert_layers(small.encoder, task.encoder, [5, 1])
    assert_equal(get_arrays(small.classifier, "c"), get_arrays(task.classifier, "c"))
    assert not small.compiled
    other = kbert.student(task, 2, settings={"dropout": 0.0})
    assert other.settings == {**task.settings, "dropout": 0.0}
    assert_equal(get_arrays(other.classifier, "c"), get_arrays(task.classifier, "c"))


def differs(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return any(a.shape != b.shape or (a != b).any() for a, b in pairs)


def test_heads_that_do_not_fit_are_newly_initialised(teacher, tokenizer):
    task = make_task(TextClassifier, kbert.student(teacher), tokenizer, labels=["a", "b"])
    narrow = kbert.student(task, 2, "random", hidden_size=8, num_heads=2)
    assert narrow.classifier.weights[0].shape == (8, 2)
    assert differs(kbert.student(task, 2, "random").classifier, task.classifier)
    for labels in (["a", "b", "c"], ["b", "a"]):  # the same width, but another order
        other = kbert.student(task, 2, settings={"labels": labels})
        assert other.labels == labels
        assert differs(other.classifier, task.classifier)
    scores = make_task(TextRegressor, kbert.student(teacher), tokenizer)
    assert not differs(kbert.student(scores, 2).classifier, scores.classifier)


@pytest.mark.parametrize("kind", [Pretraining, MultipleChoice])
def test_students_of_other_tasks(kind, teacher, tokenizer):
    task = make_task(kind, kbert.student(teacher), tokenizer)
    small = kbert.student(task, 3)
    for name, part in small.parts.items():
        if name not in small.model_parts:
            assert_equal(get_arrays(part, name), get_arrays(task.parts[name], name))


def test_without_a_pooler_goes_what_reads_it(teacher, tokenizer):
    task = make_task(Pretraining, kbert.student(teacher), tokenizer)
    small = kbert.student(task, 3, num_segments=0, pooler_activation=None)
    assert task.next_sentence
    assert not small.next_sentence
    assert small.sentence is None
    assert not differs(small.masked_lm, task.masked_lm)
    # And what the teacher has not is newly initialised.
    without = make_task(Pretraining, kbert.student(teacher), tokenizer, next_sentence=False)
    more = kbert.student(without, 2, settings={"next_sentence": True})
    assert more.sentence is not None
    assert not differs(more.masked_lm, without.masked_lm)


def test_the_masked_lm_heads_table_is_the_students(teacher, tokenizer):
    """The head's product is with the table of its own encoder."""
    task = make_task(Pretraining, kbert.student(teacher), tokenizer)
    small = kbert.student(task, 2)
    vectors, places = np.ones((1, 3, 16), "float32"), np.array([[0, 2]])
    before = to_numpy(small.masked_lm(vectors, places))
    randomise(task.encoder, seed=7)
    assert_close(to_numpy(small.masked_lm(vectors, places)), before, 0.0)
    small.encoder.token_embedding.assign(np.zeros((40, 16)))
    assert np.abs(to_numpy(small.masked_lm(vectors, places)) - before).max() > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"init": "first"},
            '"every_other", "embeddings", "random" or a list .*Received: \'first\'',
        ),
        (
            {"num_layers": 2, "init": [0]},
            r"from 0 to 5, for each of the student's 2. Received: \[0\]",
        ),
        (
            {"num_layers": 1, "init": [6]},
            r"from 0 to 5, for each of the student's 1. Received: \[6\]",
        ),
        ({"num_layers": 1, "init": [-1]}, r"from 0 to 5, .*Received: \[-1\]"),
        ({"vocabulary_size": 41}, "the same vocabulary. Received: vocabulary_size=41 and 40"),
        (
            {"hidden_size": 8},
            'initialised with its teacher\'s layers: use init="random". Received: encoder/',
        ),
        ({"intermediate_size": 8}, 'use init="random". Received: encoder/layers/0/'),
        ({"max_positions": 99}, "Received: encoder/embeddings/position of other shapes, 1 in all"),
        ({"num_segments": 3}, "Received: encoder/embeddings/segment of other shapes, 1 in all"),
        (
            {"embedding_size": 8},
            'cannot be initialised with its teacher\'s layers: use init="random"',
        ),
        ({"hidden": 8}, "hidden"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_what_is_no_student(teacher, arguments, message):
    with pytest.raises(ValueError, match=message):
        kbert.student(teacher, **{"num_layers": 3, **arguments})


def test_layers_with_an_adapter_are_not_copied(tokenizer):
    teacher = make_task(
        TextClassifier, make_encoder(vocabulary_size=40), tokenizer, labels=["a", "b"]
    )
    adapters.add(teacher, "lora", rank=2)
    for model in (teacher, teacher.encoder):
        with pytest.raises(ValueError, match=r"adapters.merge or remove first.*Encoder with lora"):
            kbert.student(model, 3)
    for init in ("random", "embeddings"):
        assert not kbert.student(teacher, 3, init).encoder.variants.added
    adapters.merge(teacher)
    assert_layers(kbert.student(teacher, 3).encoder, teacher.encoder, [0, 2, 4])


def test_a_factorised_teacher_and_a_plain_student():
    with pytest.raises(ValueError, match=r'use init="random"|unexpected'):
        kbert.student(make_encoder(embedding_size=8), 2, embedding_size=None)


def test_a_decoder_has_no_student():
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    config = kbert.DecoderConfig(vocabulary_size=9, max_positions=12, **sizes)
    with pytest.raises(ValueError, match=r"an encoder of the BERT family.*Received: a Decoder"):
        kbert.student(kbert.Decoder(config))
