"""XLNet against transformers' class: both streams, memory, permutations, gradients, sizes.

Its heads, and the way there and back, are among those of `tests/models/test_reference_family.py`
and `tests/checkpoints/test_round_trips.py`; XLA, packing and recomputation of all kinds of encoders
in `tests/models/test_encoder.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kbert import family
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.configs import XlnetConfig
from kbert.models import Encoder, Xlnet, describe
from kbert.models.weights import named_weights, set_arrays
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)
from tests.models.references import as_tensors, gradients, make_reference

B, T, P, M, LAYERS, WIDTH = 2, 10, 4, 6, 3, 64  # rows, tokens, queries, memory
GIVEN = 0


def encoder_of(model):
    checkpoint = import_model(
        model.config.to_dict(),
        {name: array.numpy() for name, array in model.state_dict().items()},
        "the reference",
    )
    encoder = Encoder(checkpoint.config)
    set_arrays(encoder, "encoder", checkpoint.arrays, checkpoint.source)
    return encoder


def make_features(segments=True, padded=True):
    rng = np.random.default_rng(0)
    features = {"token_ids": rng.integers(6, 90, (B, T))}
    if segments:
        features["segment_ids"] = np.tile(np.arange(T) > 5, (B, 1))
        features["segment_ids"] = np.where(np.arange(T) == T - 1, 2, features["segment_ids"])
    if padded:
        features["padding_mask"] = np.arange(T) < np.array([[T], [T - 3]])
    return {name: x.astype("int32") for name, x in features.items()}


def make_order():
    """Targets, what is read when, and the same as transformers' `perm_mask`."""
    rng = np.random.default_rng(1)
    targets = np.array([[1, 2, 5, 8], [0, 3, 4, 6]], "int32")
    order = np.full((B, T), GIVEN, "int32")
    for row in range(B):
        order[row, targets[row]] = 1 + rng.permutation(P)
    order[:, -1] = P + 1  # as <cls>: sees all, and only itself sees it
    given = (order[:, :, None] == GIVEN) & (order[:, None] == GIVEN)
    return targets, order, (order[:, None] >= order[:, :, None]) & ~given


def make_memory():
    return np.random.default_rng(2).normal(size=(LAYERS, B, M, WIDTH)).astype("float32")


def run_both(model, features, targets=None, order=None, permutation=None, memory=None):
    import torch

    tensors = as_tensors(features)
    inputs = dict(features)
    if memory is not None:
        inputs["memory"] = memory
        tensors["mems"] = [torch.tensor(x).permute(1, 0, 2) for x in memory]
        tensors["use_mems"] = True
    if targets is not None:
        inputs |= {"target_positions": targets, "order_ids": order}
        tensors["perm_mask"] = torch.tensor(permutation).float()
        tensors["target_mapping"] = torch.tensor(np.eye(T, dtype="float32")[targets])
    encoder = encoder_of(model)
    return encoder, inputs, tensors


def cases():
    """Values, whether there are two streams, and whether there is a memory."""
    both = [(streams, memory) for streams in (False, True) for memory in (False, True)]
    for values in ({"clamp_len": -1}, {"clamp_len": 3}):
        for streams, memory in both:
            is_fast = streams == memory or values["clamp_len"] < 0
            marks = [] if is_fast else pytest.mark.slow
            yield pytest.param(values, streams, memory, marks=marks)
    # Of one stream: transformers adds a mask of rows to one without them.
    for values in ({"attn_type": "uni"}, {"attn_type": "uni", "same_length": True}):
        yield from ((values, False, memory) for memory in (False, True))


@pytest.mark.jax_slow
@pytest.mark.parametrize(("values", "two_streams", "has_memory"), cases())
def test_outputs_equal_transformers(values, two_streams, has_memory):
    torch = pytest.importorskip("torch")
    causal = values.get("attn_type") == "uni"
    model = make_reference("xlnet", "Model", **{"clamp_len": -1, **values})
    features = make_features(padded=not causal)
    more = dict(zip(("targets", "order", "permutation"), make_order(), strict=True))
    more = more if two_streams else {}
    memory = make_memory() if has_memory else None
    encoder, inputs, tensors = run_both(model, features, memory=memory, **more)
    with torch.no_grad():
        theirs = model(**tensors, output_hidden_states=True, output_attentions=True)
    ours = to_numpy(encoder(inputs, return_hidden_states=True, return_attention=True))
    states, attentions = theirs.hidden_states, theirs.attentions
    if two_streams:  # of both in turn
        states, attentions = states[::2], [x for x, _ in attentions]
        assert_close(ours["queries"], theirs.last_hidden_state.numpy(), 1e-4, "queries")
    real = features.get("padding_mask", np.ones((B, T))) == 1
    for found, expected in zip(ours["hidden_states"], states, strict=True):
        assert_close(found[real], expected.numpy()[real], 1e-4)
    for found, expected in zip(ours["attention"], attentions, strict=True):
        found, expected = (np.moveaxis(x, 1, -1)[real] for x in (found, expected.numpy()))
        assert_close(found, expected, 1e-5)


@pytest.mark.parametrize(
    ("length", "reuse"),
    [
        *((M, reuse) for reuse in (None, 4, 8)),
        *(pytest.param(3, reuse, marks=pytest.mark.jax_slow) for reuse in (None, 2)),
    ],
)
def test_the_memory_equals_transformers(length, reuse):
    torch = pytest.importorskip("torch")
    model = make_reference("xlnet", "Model", mem_len=length, reuse_len=reuse)
    memory = make_memory()[:, :, :length]
    encoder, inputs, tensors = run_both(model, make_features(padded=False), memory=memory)
    with torch.no_grad():
        theirs = model(**tensors).mems
    found = to_numpy(encoder(inputs)["memory"])
    assert_close(found, np.stack([x.permute(1, 0, 2).numpy() for x in theirs]), 1e-4)


@pytest.mark.jax_slow
def test_gradients_of_both_streams_equal_transformers():
    torch = pytest.importorskip("torch")
    model = make_reference("xlnet", "Model")
    encoder, inputs, tensors = run_both(model, make_features(), *make_order(), memory=make_memory())
    weight = np.random.default_rng(3).normal(size=(B, P, WIDTH)).astype("float32")
    (model(**tensors).last_hidden_state * torch.tensor(weight)).sum().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    ours = gradients(
        lambda: ops.sum(encoder(inputs)["queries"] * ops.convert_to_tensor(weight)),
        named_weights(encoder, "encoder"),
    )
    expected = import_model(model.config.to_dict(), theirs, "the reference").arrays
    assert_gradients_close(ours, expected)


@pytest.mark.jax_slow
def test_padding_may_be_on_either_side():
    """Distances are the same, and the pooler reads the last token wherever it stands."""
    encoder = Encoder(tiny_config("xlnet"))
    randomise(encoder)
    inputs = tiny_inputs(encoder.config)
    lengths = inputs["padding_mask"].sum(1)

    def moved(x):
        rows = zip(np.asarray(x), lengths, strict=True)
        return np.stack([np.roll(row, len(row) - n, axis=0) for row, n in rows])

    right = to_numpy(encoder(inputs))
    left = to_numpy(encoder({name: moved(x) for name, x in inputs.items()}))
    real = moved(inputs["padding_mask"]) == 1
    assert_close(left["sequence"][real], moved(right["sequence"])[real], 1e-5)
    assert_close(left["pooled"], right["pooled"], 1e-5)
    alone = {name: x[2:, : lengths[2]] for name, x in inputs.items() if name != "padding_mask"}
    assert_close(to_numpy(encoder(alone)["pooled"]), right["pooled"][2:], 1e-5)


@pytest.mark.jax_slow
def test_a_query_that_sees_nothing_knows_nothing():
    """transformers lets it attend to everything alike, itself among it."""
    encoder = Encoder(tiny_config("xlnet"))
    randomise(encoder)
    features = {
        "order_ids": np.array([[2, 0, 1]], "int32"),
        "target_positions": np.array([[0, 1, 2]], "int32"),
    }
    found = [
        to_numpy(encoder({"token_ids": np.array([ids], "int32"), **features})["queries"])[0]
        for ids in ([4, 5, 6], [7, 8, 9], [4, 8, 6])
    ]
    assert_close(found[0][1], found[1][1], 0)  # the first that is read
    assert np.abs(found[0] - found[2]).max(axis=-1)[[0, 2]].min() > 1e-3  # all others see it


@pytest.mark.tensorflow  # JAX broadcasts no score of no query
def test_no_token_need_be_predicted():
    encoder = Encoder(tiny_config("xlnet"))
    features = {
        **{
            "token_ids": np.array([[4, 5, 6]], "int32"),
            "order_ids": np.array([[2, 0, 1]], "int32"),
        },
        "target_positions": np.zeros((1, 0), "int32"),
    }
    assert tuple(encoder(features)["queries"].shape) == (1, 0, 16)


@pytest.mark.jax_slow
def test_memory_is_what_was_read_before():
    """Two rows one after the other, causal: as one row of both."""
    encoder = Encoder(tiny_config("xlnet", attention="causal"))
    randomise(encoder)
    ids = np.random.default_rng(0).integers(0, 40, (2, 12)).astype("int32")
    whole = to_numpy(encoder(ids)["sequence"])
    memory = encoder({"token_ids": ids[:, :7], "memory": np.zeros((2, 2, 0, 16), "float32")})
    assert tuple(memory["memory"].shape) == (2, 2, 0, 16)  # as long as it was
    first = encoder(ids[:, :7], return_hidden_states=True)
    assert_close(to_numpy(first["sequence"]), whole[:, :7], 1e-5)
    memory = ops.stack(first["hidden_states"][:-1])
    second = encoder({"token_ids": ids[:, 7:], "memory": memory})
    assert_close(to_numpy(second["sequence"]), whole[:, 7:], 1e-5)
    newest = to_numpy(second["memory"])[:, :, -5:]
    assert_close(newest[0], to_numpy(encoder.embeddings(ids[:, 7:])), 1e-6)


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_symbolic_compiled_and_in_half_precision(dtype):
    config = tiny_config("xlnet", num_layers=1)
    encoder, exact = Encoder(config, dtype=dtype), Encoder(config)
    randomise(encoder)
    exact.set_weights(encoder.get_weights())
    inputs = {
        **tiny_inputs(config, batch=2),
        "order_ids": np.tile(np.arange(12), (2, 1)).astype("int32"),
        "target_positions": np.array([[1, 5], [3, 2]], "int32"),
        "memory": np.random.default_rng(0).normal(size=(1, 2, 5, 16)).astype("float32"),
    }
    found = compiled(lambda: encoder(inputs))()
    spec = encoder.compute_output_spec(inputs)
    assert found.keys() == spec.keys() == {"sequence", "pooled", "queries", "memory"}
    for name, x in to_numpy(exact(inputs)).items():
        assert tuple(found[name].shape) == spec[name].shape == x.shape
        assert keras.backend.standardize_dtype(found[name].dtype) == spec[name].dtype
        assert_close(to_numpy(found[name]), x, 1e-5 if dtype == "float32" else 0.1, name)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("xlnet-base-cased", 116_718_336), ("xlnet-large-cased", 360_268_800)],
)
def test_sizes(name, parameters):
    """Of transformers' classes on its meta device, which tests/models/test_family.py asks too."""
    assert describe(name).parameters == describe(name).held_parameters == parameters
    assert family(f"xlnet/{name}") == family(name)


@pytest.mark.tensorflow
def test_the_encoder_holds_what_is_described(tmp_path):
    for pooler in ("tanh", None):
        encoder = Encoder(tiny_config("xlnet", pooler_activation=pooler))
        assert type(encoder) is Xlnet
        assert describe(encoder.config).held_parameters == encoder.count_params()
    encoder.save_to_preset(tmp_path)
    assert Encoder.from_preset(tmp_path).config == encoder.config


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"same_length": True}, "`same_length` requires attention='causal'"),
        ({"attention": "uni"}, "`attention` must be one of bidirectional, causal"),
        ({"clamp_length": 0}, "`clamp_length` must be an integer of at least 1"),
        ({"num_segments": 2}, "not support `num_segments`. Received: 2"),
        ({"positions": "rotary"}, "not support `positions`. Received: 'rotary'"),
    ],
)
def test_configs_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config("xlnet", **changes)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"target_positions": np.zeros((1, 1), "int32")}, "`target_positions` require `order_ids`"),
        ({"memory": np.zeros((1, 1, 4, 16))}, r"must be of shape \(2, batch, tokens, 16\)"),
        (
            {
                "memory": np.zeros((2, 1, 4, 16)),
                "example_ids": np.ones((1, 3), "int32"),
                "position_ids": np.ones((1, 3), "int32"),
            },
            "`memory` is not supported with `example_ids`",
        ),
        ({"mems": np.zeros((1, 1))}, "Received: token_ids, mems"),
    ],
)
def test_inputs_that_are_refused(features, message):
    encoder = Encoder(tiny_config("xlnet"))
    with pytest.raises(ValueError, match=message):
        encoder({"token_ids": np.ones((1, 3), "int32"), **features})


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type": "both"}, "`attn_type` must be bi or uni. Received: 'both'"),
        ({"attn_type": ["bi"]}, "`attn_type` must be bi or uni"),
        (
            {"d_head": 3},
            "`d_head` must be the hidden width .* Received: 3, with 4 heads and a width of 16",
        ),
        ({"bi_data": True}, "`bi_data` must be False"),
        ({"summary_type": "first"}, "`summary_type` must be 'last'"),
        ({"n_langs": 3}, "Received: unknown n_langs"),
    ],
)
def test_configs_of_transformers_that_are_refused(changes, message):
    content, _ = export_model(tiny_config("xlnet"), {})
    assert import_model(content, {}, "there").config == XlnetConfig(
        **{**tiny_config("xlnet").to_dict(), "max_positions": 512, "pooler_activation": None}
    )
    with pytest.raises(ValueError, match=message):
        import_model({**content, **changes}, {}, "there")
    with pytest.raises(ValueError, match="its attention dropout equals its dropout"):
        export_model(tiny_config("xlnet", dropout=0.2), {})


@pytest.mark.tensorflow
def test_the_head_that_searches_by_beams_is_told(tmp_path):
    pytest.importorskip("torch")
    from kbert.tasks import Task

    make_reference("xlnet", "ForQuestionAnswering").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"a head of XLNetForQuestionAnswering that kbert has no"):
        Task.from_preset(tmp_path)


@pytest.mark.jax_slow
def test_shapes_with_a_memory_are_said():
    config = tiny_config("xlnet", hidden_size=WIDTH, num_layers=LAYERS)
    encoder, memory = Encoder(config), make_memory()
    inputs = {**make_features(), "memory": memory}
    inputs["token_ids"] = inputs["token_ids"] % config.vocabulary_size
    wanted = {"return_attention": True, "return_internals": True}
    said = encoder.compute_output_spec(inputs, **wanted)
    keras.tree.map_structure(
        lambda spec, x: np.testing.assert_equal(tuple(x.shape), spec.shape),
        said,
        encoder(inputs, **wanted),
    )
    assert said["attention"][0].shape == (B, 4, T, M + T)


@pytest.mark.tensorflow
def test_an_order_and_a_memory_of_any_length():
    import tensorflow as tf

    encoder = Encoder(tiny_config("xlnet", hidden_size=WIDTH, num_layers=LAYERS))
    randomise(encoder)
    targets, order, _ = make_order()
    inputs = {**make_features(), "order_ids": order, "target_positions": targets}
    inputs["token_ids"] = inputs["token_ids"] % 40
    inputs["memory"] = make_memory()
    spec = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in inputs.items()}
    spec["memory"] = tf.TensorSpec([LAYERS, None, None, WIDTH])
    found = tf.function(encoder, input_signature=[spec])(inputs)
    for name, x in encoder(inputs).items():
        assert_close(to_numpy(found[name]), to_numpy(x), 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["xlnet", "universal_transformer"])
def test_a_pooler_may_be_the_token_itself(kind):
    encoder = Encoder(tiny_config(kind, pooler_activation="identity"))
    out = to_numpy(encoder(np.array([[3, 4, 5]])))
    place = -1 if kind == "xlnet" else 0
    np.testing.assert_array_equal(out["pooled"], out["sequence"][:, place])
