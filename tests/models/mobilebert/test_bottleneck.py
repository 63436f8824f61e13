"""MobileBERT's part: every kind of it against transformers, what it refuses, its packed rows."""

import numpy as np
import pytest
from keras import ops

import kbert
from kbert.catalog.families import family
from kbert.checkpoints import Checkpoint, read_checkpoint
from kbert.checkpoints.huggingface.architectures import find
from kbert.checkpoints.huggingface.config import read_config
from kbert.checkpoints.huggingface.huggingface import import_model, write_folder
from kbert.checkpoints.renames import read_arrays
from kbert.checkpoints.vocabulary import extend_vocabulary
from kbert.configs.encoder import EncoderConfig
from kbert.layers import SharedEmbeddings
from kbert.models import Encoder, describe
from kbert.models.mobilebert.bottleneck import BottleneckPart, NoNorm
from kbert.models.mobilebert.huggingface import USUAL
from kbert.models.parts import part_of
from kbert.models.weights import named_weights, set_arrays
from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)
from tests.models.references import (
    as_tensors,
    gradients,
    make_inputs,
    make_reference,
    randomised,
    run_kbert,
    run_reference,
    widen_queries,
)

# As MobileBERT tiny and IB-BERT are, and what transformers can be of the latter. The usual kind
# runs through tests/models/test_reference_family.py.
TINY = {
    "use_bottleneck_attention": True,
    "key_query_shared_bottleneck": False,
    "num_feedforward_networks": 2,
}
SQUARE = {
    "use_bottleneck_attention": False,
    "key_query_shared_bottleneck": False,
    "num_feedforward_networks": 1,
    "intra_bottleneck_size": 64,
    "normalization_type": "layer_norm",
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "classifier_activation": True,
}
TEACHER = {**SQUARE, "intra_bottleneck_size": 96}
OTHERS = {"tiny": TINY, "square": SQUARE, "teacher": TEACHER}


def reference(ending, kind):
    model = make_reference("mobilebert", ending, **OTHERS[kind])
    return randomised(widen_queries(model)) if kind == "teacher" else model


def checkpoint_of(model, kind, arrays=None):
    """kbert's config and weights, or gradients; the teacher's by the table alone."""
    if arrays is None:
        arrays = {name: array.numpy() for name, array in model.state_dict().items()}
    if kind != "teacher":
        return import_model(model.config.to_dict(), arrays, "the reference")
    known = ("mobilebert.", "cls.")
    arrays = {n if n.startswith(known) else f"mobilebert.{n}": x for n, x in arrays.items()}
    content = {**model.config.to_dict(), "intra_bottleneck_size": model.config.hidden_size}
    config = read_config(find("mobilebert", ""), content, "the reference")
    width = model.config.intra_bottleneck_size
    config = config.replace(part={**config.part, "width": width}, pooler_activation="tanh")
    found, _ = read_arrays(find("mobilebert", "").rules(config, None), arrays)
    return Checkpoint(config=config, arrays=found, task=None, source="the reference")


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_equal_hugging_face(kind):
    pytest.importorskip("transformers")
    model = reference("ForPreTraining", kind)
    checkpoint = checkpoint_of(model, kind)
    features = make_inputs(0, segments=True, padded=True)
    real = features["padding_mask"] == 1
    ours, theirs = run_kbert(checkpoint, features), run_reference(model, features)
    for i, (a, b) in enumerate(zip(ours["hidden_states"], theirs["hidden_states"], strict=True)):
        assert_near(a[real], b[real], f"hidden state {i}")
    for i, (a, b) in enumerate(zip(ours["attention"], theirs["attentions"], strict=True)):
        a, b = np.moveaxis(a, 1, -1)[real], np.moveaxis(b, 1, -1)[real]
        assert_near(a, b, f"attention {i}")
    assert_near(ours["masked_lm"][real], theirs["prediction_logits"][real], "masked LM")
    assert_near(ours["sentence"], theirs["seq_relationship_logits"], "next sentence")


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["tiny", "square"])
def test_other_kinds_there_and_back(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    model = reference("ForPreTraining", kind)
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    write_folder(tmp_path / "ours", checkpoint.config, checkpoint.arrays)
    again = transformers.MobileBertForPreTraining.from_pretrained(tmp_path / "ours")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def assert_near(actual, expected, what):
    assert_close(actual, expected, 1e-4 * max(1.0, np.abs(expected).max() / 10), what)


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", OTHERS)
def test_gradients_of_other_kinds_equal_hugging_face(kind):
    pytest.importorskip("transformers")
    import torch

    model = reference("Model", kind)
    checkpoint = checkpoint_of(model, kind)
    encoder = Encoder(checkpoint.config)
    set_arrays(encoder, "encoder", checkpoint.arrays, checkpoint.source)
    features = make_inputs(0, segments=True, padded=True)
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(*features["token_ids"].shape, 64)).astype("float32")
    weight *= features["padding_mask"][..., None]
    out = model(**as_tensors(features))
    loss = (out.last_hidden_state * torch.tensor(weight)).sum() + out.pooler_output.sum()
    loss.backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}

    def our_loss():
        out = encoder(features)
        weighted = out["sequence"] * ops.convert_to_tensor(weight)
        return ops.sum(weighted) + ops.sum(out["pooled"])

    ours = gradients(our_loss, named_weights(encoder, "encoder"))
    ours["encoder/embeddings/token"][0] = 0  # to the row of padding PyTorch gives none
    expected = checkpoint_of(model, kind, theirs).arrays
    assert_gradients_close(ours, expected)


@pytest.mark.jax_slow
@pytest.mark.parametrize("attention_input", ["own_bottleneck", "bottleneck", "whole"])
@pytest.mark.parametrize("no_norm", [True, False])
def test_the_count_by_formula_is_that_of_the_weights(attention_input, no_norm):
    part = {"name": "bottleneck", "width": 12, "num_feed_forwards": 3, "no_norm": no_norm}
    config = tiny_config(
        part={**part, "attention_input": attention_input}, embedding_size=8, num_segments=0
    )
    assert describe(config).parameters == Encoder(config).count_params()


def test_what_transformers_cannot_be(tmp_path):
    teacher = family("ib-bert-large-uncased")
    with pytest.raises(ValueError, match=r"`width` is the hidden size.*some of its norms"):
        write_folder(tmp_path, teacher, {})
    content = {"model_type": "mobilebert", "vocab_size": 9, **TEACHER}
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    content |= {**sizes, "intermediate_size": 8}
    for changes, message in (
        ({}, r"must be the hidden size .* Received: 96 and 64 in memory"),
        (
            {"use_bottleneck_attention": True, "key_query_shared_bottleneck": True},
            "must not both be true",
        ),
        (
            {"intra_bottleneck_size": 64, "normalization_type": "rms"},
            "`normalization_type` must be",
        ),
        ({"intra_bottleneck_size": 64, "layer_norm_eps": 1e-12}, "layer_norm_eps=1e-12 in memory"),
        ({"trigram_input": False}, "`trigram_input`"),
        ({"use_bottleneck": False}, "`use_bottleneck`"),
    ):
        with pytest.raises(ValueError, match=message):
            read_config(find("mobilebert", ""), {**content, **changes}, "memory")


def test_no_norm_is_a_scale_and_a_shift():
    layer = NoNorm()
    layer.build((None, 2))
    layer.gamma.assign([2.0, 3.0])
    layer.beta.assign([0.5, 0.0])
    assert to_numpy(layer(ops.array([[1.0, -1.0]]))).tolist() == [[2.5, -3.0]]


@pytest.mark.jax_slow
def test_a_token_reads_both_its_neighbours_and_nothing_beyond_the_row():
    config = tiny_config(**KINDS["bottleneck"])
    embeddings = Encoder(config).embeddings
    randomise(embeddings)
    inputs = tiny_inputs(config, batch=1, length=6)
    first = to_numpy(embeddings(inputs["token_ids"]))
    other = inputs["token_ids"].copy()
    other[0, 2] = (other[0, 2] + 1) % config.vocabulary_size
    changed = np.abs(to_numpy(embeddings(other)) - first).max(axis=-1)[0] > 0
    assert changed.tolist() == [False, True, True, True, False, False]
    # Of two examples in a row, each reads its own tokens alone.
    places = np.array([[0, 1, 2, 0, 1, 2]], "int32")
    ids = inputs["token_ids"]
    packed = to_numpy(embeddings(ids, places=places))[0]
    alone = to_numpy(embeddings(ids.reshape(2, 3))).reshape(6, -1)
    assert_close(packed, alone, 1e-6)
    assert np.abs(packed - first[0])[2:4].max() > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"}, r"part='bottleneck' requires .* positions='rotary'"),
        ({"norm": "rms"}, r"norm='layer'.*Received: .*norm='rms'"),
        ({"feed_forward": "gated"}, r"Received: .*feed_forward='gated'"),
        ({"num_heads": 16}, r"multiple of `num_heads`. Received: width=8, num_heads=16"),
        ({"embedding_size": 32}, r"must not exceed `hidden_size`.*Received: embedding_size=32"),
        ({"part": {"name": "bottleneck", "attention_input": "none"}}, "attention_input"),
        ({"part": {"name": "bottleneck", "num_feed_forwards": 0}}, "num_feed_forwards"),
    ],
)
def test_what_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**{**KINDS["bottleneck"], **changes})


def test_its_defaults_are_those_that_checkpoints_know():
    part = part_of(family("google/mobilebert-uncased"))
    assert isinstance(part, BottleneckPart)
    assert {name: getattr(part, name) for name in USUAL} == USUAL


def test_its_tables_are_not_shared_with_a_generator():
    embeddings = Encoder(tiny_config(**KINDS["bottleneck"])).embeddings
    with pytest.raises(ValueError, match=r"BERT's embeddings only.*Received: .*TrigramEmbeddings"):
        SharedEmbeddings(embeddings, hidden_size=8)


def test_a_pooler_without_a_layer():
    config = tiny_config(pooler_activation="identity")
    encoder = Encoder(config)
    out = encoder(tiny_inputs(config))
    assert_close(to_numpy(out["pooled"]), to_numpy(out["sequence"])[:, 0], 0)
    assert config.count_pooler() == 0
    assert not encoder.pooler.weights
    with pytest.raises(ValueError, match=r"`pooler_norm` requires a pooler with a dense layer"):
        config.replace(pooler_norm=True)
    assert EncoderConfig.from_dict(config.to_dict()) == config


def test_what_its_attention_computed_is_as_wide_as_its_heads():
    config = tiny_config(**KINDS["bottleneck"])
    encoder, inputs = Encoder(config), tiny_inputs(config)
    asked = {"return_internals": True, "return_attention": True}
    found, spec = encoder(inputs, **asked), encoder.compute_output_spec(inputs, **asked)
    for layer, shapes in zip(found["internals"], spec["internals"], strict=True):
        assert {n: tuple(x.shape) for n, x in layer.items()} == {
            n: tuple(x.shape) for n, x in shapes.items()
        }
    assert tuple(found["internals"][0]["value"].shape) == (3, 4, 12, 2)


@pytest.mark.tensorflow
def test_its_head_has_columns_beside_the_table(tmp_path):
    """Their logits add up, and the task with them is what it was when it is read again."""
    config = tiny_config(**KINDS["bottleneck"])
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_TOKENS, *(f"word{i}" for i in range(config.vocabulary_size - 5))]
    )
    task = kbert.tasks.Pretraining(Encoder(config), tokenizer)
    randomise(task)
    head = task.masked_lm
    assert tuple(head.columns.shape) == (config.vocabulary_size, 8)
    sequence = np.random.default_rng(0).normal(size=(1, 2, 16)).astype("float32")
    x = to_numpy(head.norm(head.transform(sequence)))
    table = np.concatenate([to_numpy(task.encoder.embeddings.token), to_numpy(head.columns)], 1)
    assert_close(to_numpy(head(sequence)), x @ table.T + to_numpy(head.bias), 1e-4)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    np.testing.assert_array_equal(to_numpy(again.masked_lm(sequence)), to_numpy(head(sequence)))


def test_a_longer_vocabulary_has_columns_too():
    config = tiny_config(**KINDS["bottleneck"])
    size = config.vocabulary_size
    arrays = {
        "encoder/embeddings/token": np.eye(size, 8, dtype="float32"),
        "masked_lm/columns": np.arange(size * 8, dtype="float32").reshape(size, 8),
        "masked_lm/bias": np.zeros(size, "float32"),
    }
    grown, arrays = extend_vocabulary(config, arrays, size + 1, pieces={size: [1, 2]})
    assert grown.vocabulary_size == size + 1
    assert {name: len(array) for name, array in arrays.items()} == dict.fromkeys(arrays, size + 1)
    assert arrays["masked_lm/columns"][size].tolist() == [12, 13, 14, 15, 16, 17, 18, 19]
