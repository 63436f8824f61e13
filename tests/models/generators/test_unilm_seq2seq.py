"""UniLM as encoder-decoder: what the masks see, and decoding by a mask behind the text so far."""

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Beam, Greedy, decode
from kbert.heads import MaskedLMHead
from kbert.models import Encoder, UniLMSeq2Seq
from tests.harness import assert_close, compiled, randomise, tiny_config, to_numpy
from tests.models.generators.tiny import MODES, padded

CLS, SEP, MASK = 1, 2, 3
SOURCES = (7, 3)
CONFIGS = {
    "bert": {},
    "unilm": {"num_segments": 6},
    "no segments": {"num_segments": 0},
    "narrow": {"embedding_size": 8, "num_segments": 6, "num_layer_groups": 1},
}


def make(**changes):
    encoder = Encoder(tiny_config(**changes))
    head = MaskedLMHead(encoder.config, encoder.token_embedding)
    for seed, layer in enumerate((encoder, head)):
        randomise(layer, seed=seed)
    return UniLMSeq2Seq(encoder, head)


def with_cls(source, mask):
    return np.pad(source, [(0, 0), (1, 0)], constant_values=CLS), np.pad(
        mask, [(0, 0), (1, 0)], constant_values=1
    )


def from_scratch(model, source, mask, tokens):
    """Logits (B, V) of the token behind `tokens` (B, N): the whole row again, with a mask."""
    ids, padding = with_cls(source, mask)
    targets = np.concatenate([tokens, np.full((len(ids), 1), MASK)], 1).astype("int32")
    inputs = {
        "encoder_token_ids": ids,
        "encoder_padding_mask": padding,
        "target_token_ids": targets,
    }
    return to_numpy(model.logits(model(inputs)["sequence"]))[:, -1]


@pytest.mark.jax_slow
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_it_is_the_encoder_with_an_attention_order(changes):
    """Row by row, what `UniLM` computes in a row from sequence to sequence of these segments."""
    model = make(**changes)
    source, mask = with_cls(*padded(SOURCES))
    target = np.array([[9, MASK, 8, MASK], [MASK, 7, 6, 5]], "int32")
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": mask,
        "target_token_ids": target,
    }
    out = to_numpy(model(inputs))
    segments = model.config.num_segments
    for row, length in enumerate(mask.sum(1)):
        ids = np.concatenate([source[row, :length], target[row]])[None]
        places = np.arange(ids.shape[1])[None]
        one = {"token_ids": ids, "attention_order": np.where(places < length, 0, places)}
        if segments:
            one["segment_ids"] = np.where(places < length, segments - 2, segments - 1)
        alone = model.encoder(one)["sequence"]
        assert_close(out["sequence"][row], to_numpy(alone)[0, length:], 1e-5)
        assert_close(out["encoder_sequence"][row, :length], to_numpy(alone)[0, :length], 1e-5)
        logits = to_numpy(model.masked_lm(alone))[0, length:]
        assert_close(to_numpy(model.logits(out["sequence"]))[row], logits, 1e-5)


def begun(source, mask):
    """Sources and their masks, with [CLS] before each."""
    ids, ones = np.full((len(source), 1), CLS, "int32"), np.ones((len(source), 1), "int32")
    return np.concatenate([ids, source], 1), np.concatenate([ones, mask], 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    [
        "unilm",
        *(
            pytest.param(name, marks=[pytest.mark.slow, pytest.mark.jax_slow])
            for name in ("bert", "no segments", "narrow")
        ),
    ],
)
def test_decoding_with_the_cache_is_decoding_from_scratch(name, mode):
    model = make(**CONFIGS[name])
    source, mask = padded(SOURCES)
    count = 4
    tokens = np.random.default_rng(3).integers(4, 40, (2, count)).astype("int32")
    masks = ops.full((2,), MASK, dtype="int32")
    step = model.step if mode == "op by op" else compiled(model.step)
    logits, cache = model.prefill(*begun(source, mask), count + 1, masks)
    assert_close(to_numpy(logits), from_scratch(model, source, mask, tokens[:, :0]), 2e-5)
    for t in range(count):
        new = ops.convert_to_tensor(tokens[:, t])
        logits, cache = step(new, cache, ops.convert_to_tensor(t, "int32"))
        expected = from_scratch(model, source, mask, tokens[:, : t + 1])
        assert_close(to_numpy(logits), expected, 2e-5, f"behind token {t}")


@pytest.mark.tensorflow  # the step without a cache runs outside of a graph
@pytest.mark.parametrize("method", [Greedy(), Beam(width=3, num_results=3)], ids=["greedy", "beam"])
def test_texts_are_those_without_a_cache(method):
    """The same loop, with a step that keeps only the tokens and computes the whole row again."""
    model, count = make(num_segments=6), 5
    source, mask = padded(SOURCES)
    masks = ops.full((2,), MASK, dtype="int32")
    logits, cache = model.prefill(*begun(source, mask), count, masks)
    settings = {"method": method, "max_new_tokens": count, "stop_ids": [SEP]}
    settings["banned_ids"] = [0, CLS, MASK]
    found = decode(model.step, logits, cache, **settings)

    def step(token_ids, cache, t):
        t = int(t)
        tokens = to_numpy(cache["decoded"]).copy()
        tokens[:, t] = to_numpy(token_ids)
        prompt = [to_numpy(x) for x in cache["prompt"]]
        new = from_scratch(model, *prompt, tokens[:, : t + 1])
        return ops.convert_to_tensor(new), {**cache, "decoded": ops.convert_to_tensor(tokens)}

    first = ops.convert_to_tensor(from_scratch(model, source, mask, np.zeros((2, 0), "int32")))
    kept = {
        "prompt": [ops.convert_to_tensor(source), ops.convert_to_tensor(mask)],
        "decoded": ops.zeros((2, count), "int32"),
    }
    expected = decode(step, first, kept, **settings)
    for name in ("token_ids", "lengths"):
        np.testing.assert_array_equal(*(to_numpy(getattr(x, name)) for x in (found, expected)))
    assert_close(to_numpy(found.scores), to_numpy(expected.scores), 1e-4)
    assert len({*map(tuple, to_numpy(found.token_ids).reshape(-1, count).tolist())}) > 1


@pytest.mark.jax_slow
def test_what_it_sees_and_what_it_has():
    model = make(num_segments=6)
    source, mask = with_cls(*padded(SOURCES))
    inputs = {"encoder_token_ids": source, "target_token_ids": np.full((2, 3), MASK)}
    out = to_numpy(
        model(
            {**inputs, "encoder_padding_mask": mask},
            return_attention=True,
            return_hidden_states=True,
        )
    )
    assert ((out["attention"][0] > 0) == np.tri(3, dtype=bool)).all()
    assert ((out["cross_attention"][0] > 0) == (mask > 0)[:, None, None]).all()
    assert ((out["encoder_attention"][0] > 0) == (mask > 0)[:, None, None]).all()
    assert_close(out["hidden_states"][-1], out["sequence"], 0)
    assert model.max_length == 11  # [CLS] and two sides of 24 positions
    assert [*model.parts()] == ["encoder", "masked_lm"]
    names = {weight.path for weight in model.weights}
    assert len(names) == len(model.weights) == len(model.encoder.weights) + 5


def test_what_does_not_fit_is_refused():
    model = make()
    ids = np.ones((1, 3), "int32")
    for inputs in (ids, {"encoder_token_ids": ids, "decoder_token_ids": ids}):
        with pytest.raises(ValueError, match=r"and `target_token_ids`, .*with a masked_share. Rec"):
            model(inputs)
    with pytest.raises(ValueError, match=r"must have positions='learned'.*rotary"):
        make(positions="rotary")
