"""The models' caches: what is decoded with them is what is decoded without.

Without a cache, a text is read whole, each row alone and without padding.
"""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.configs.decoder import DecoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.decoding import Beam, Greedy, Sampling, decode, stream
from tests.decoding.toy import in_a_function, texts_of
from tests.harness import compiled, randomise

SIZES = {
    "vocabulary_size": 30,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 32,
    "max_positions": 24,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
LONGEST, STOP = 10, [3, 17]
LENGTHS = (7, 1, 4, 6)


def as_it_is(function):
    return function


class Generator:
    """A model, the inputs of its prefill, and what it says without a cache."""

    def __init__(self, kind):
        self.name = kind
        rng = np.random.default_rng(0)
        self.ids = rng.integers(1, 30, (4, 7)).astype("int32")
        self.mask = (np.arange(7) < np.array(LENGTHS)[:, None]).astype("int32")
        self.ids *= self.mask
        if kind == "seq2seq":
            self.model = kbert.Seq2Seq(
                Seq2SeqConfig(**SIZES, block="pre_norm", positions="learned")
            )
        else:
            self.model = kbert.Decoder(DecoderConfig(**SIZES, block=kind))
        # With a large table, or large shifts, a model repeats one token for ever.
        randomise(self.model, sigma=0.8)
        factors = {"token": 0.3, "bias": 0.1, "beta": 0.1}
        for weight in self.model.weights:
            weight.assign(weight.value * factors.get(weight.name, 1.0))

    def prefill(self, ids, mask):
        if self.name == "seq2seq":
            start = ops.full((ids.shape[0],), 2, "int32")
            return self.model.prefill(ids, mask, LONGEST, start)
        return self.model.prefill(ids, mask, LONGEST)

    def decode(self, method, way, seed=None):
        def whole(ids, mask):
            logits, cache = self.prefill(ids, mask)
            limits = {"max_new_tokens": LONGEST, "stop_ids": STOP, "seed": seed}
            return decode(self.model.step, logits, cache, method=method, **limits)

        return way(whole)(ops.convert_to_tensor(self.ids), ops.convert_to_tensor(self.mask))

    def log_probabilities(self, row, text):
        """Of the token behind each beginning of a text, the empty one first: (1 + |y|, V)."""
        ids = self.ids[row : row + 1, : LENGTHS[row]]
        if self.name == "seq2seq":
            before = [2]
            target = np.array([[*before, *text]], "int32")
            out = self.model({"encoder_token_ids": ids, "decoder_token_ids": target})
        else:
            before = ids[0]
            out = self.model(np.concatenate([ids, np.array([text], "int32")], axis=1))
        logits = self.model.logits(out["sequence"])[0, len(before) - 1 :]
        return ops.convert_to_numpy(ops.log_softmax(logits))


@pytest.fixture(
    scope="module",
    params=[
        "pre_norm",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("post_norm", "seq2seq")),
    ],
)
def generator(request):
    keras.utils.set_random_seed(0)
    return Generator(request.param)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [in_a_function, pytest.param(compiled, marks=pytest.mark.slow)], ids=["graph", "xla"]
)
def test_with_the_cache_as_without(generator, way):
    texts, scores = texts_of(generator.decode(Greedy(), way))
    for row, (text,) in enumerate(texts):
        behind = generator.log_probabilities(row, text)[: len(text)]
        assert text == tuple(behind.argmax(-1))
        assert scores[row, 0] == pytest.approx(behind.max(-1).sum(), abs=1e-3)
        assert [token in STOP for token in text[:-1]] == [False] * (len(text) - 1)
        assert text[-1] in STOP or len(text) == LONGEST
    assert len({len(text) for (text,) in texts}) > 1
    assert max(len(set(text)) for (text,) in texts) > 3


@pytest.mark.slow
def test_a_beams_cache_follows_its_texts(generator):
    """The score of each result is that of its text, read whole."""
    texts, scores = texts_of(generator.decode(Beam(width=5, num_results=5), in_a_function))
    for row in range(4):
        assert len(set(texts[row])) == 5
        for text, score in zip(texts[row], scores[row], strict=True):
            behind = generator.log_probabilities(row, text)
            total = sum(behind[place, token] for place, token in enumerate(text))
            assert score == pytest.approx(total / ((5 + len(text)) / 6) ** 0.6, abs=1e-3)


def test_a_stream_of_a_compiled_step(generator):
    method = Sampling(top_k=20)
    expected, _ = texts_of(generator.decode(method, as_it_is, seed=3))
    logits, cache = generator.prefill(generator.ids, generator.mask)
    step = in_a_function(generator.model.step)
    limits = {"max_new_tokens": LONGEST, "stop_ids": STOP, "seed": 3}
    found = np.stack(list(stream(step, logits, cache, method=method, **limits)), axis=1)
    for row, (text,) in enumerate(expected):
        assert tuple(found[row, : len(text)]) == text
        assert not found[row, len(text) :].any()
