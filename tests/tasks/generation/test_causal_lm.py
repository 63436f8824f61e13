"""Language models: the loss against NumPy, continuations, streams, scores, bad input."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert.decoding import Beam, Greedy, Sampling
from kbert.tasks import CausalLM
from kbert.tokenizers import BytePairTokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.training import AdamW
from tests.tasks.generation import writing

PROMPTS = ["a b c", "", "h", "a b c d e f g h a b c d e f g h a", "a b"]
NUCLEUS = Sampling(top_p=0.9)
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def task():
    """Of random weights."""
    return writing.causal_lm()


@pytest.fixture(scope="module")
def alphabet():
    """Has learned the order of the letters, and that a text ends behind the last."""
    task = writing.causal_lm(max_positions=96)
    task.compile(AdamW(1e-2, weight_decay=0.0, bias_correction=True), jit_compile=False)
    letters = [3, *range(5, 13)]
    rows = np.array([np.resize(np.roll(letters, n), 13) for n in range(9)], "int32")
    batch = {"token_ids": rows[:, :-1], "targets": rows[:, 1:]}
    batch["weights"] = np.ones(batch["targets"].shape, "float32")
    history = task.fit(writing.dataset([batch] * 60), verbose=0).history
    assert history["perplexity"][-1] < 3
    return task


def byte_level(**roles):
    roles = roles or {"unk": END, "bos": END, "eos": END}
    return BytePairTokenizer([*CHARACTERS, END], [], special_tokens=roles)


def test_the_loss_is_the_mean_over_all_real_tokens(task):
    batches = writing.random_batches(2)
    task.compile(AdamW(), jit_compile=False)
    total = hits = count = 0.0
    for batch in batches:
        logs = writing.log_softmax(task(batch))
        of_targets = np.take_along_axis(logs, batch["targets"][..., None], -1)[..., 0]
        total -= (of_targets * batch["weights"]).sum()
        hits += ((logs.argmax(-1) == batch["targets"]) * batch["weights"]).sum()
        count += batch["weights"].sum()
    found = task.evaluate(writing.dataset(batches), return_dict=True, verbose=0)
    assert found["loss"] == found["lm_loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-4)
    assert found["lm_accuracy"] == pytest.approx(hits / count, rel=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_two_replicas_and_one(mirrored):
    writing.check_replicas(writing.causal_lm, mirrored, writing.random_batches(3))


@pytest.mark.slow
def test_it_trains_on_from_what_it_has_learned(alphabet):
    assert alphabet.predict(["a b c", "", "h"]) == [" d e f g h", "a b c d e f g h", ""]
    assert alphabet.predict("e f", include_prompt=True) == ["e f g h"]
    assert alphabet.predict("e f", method=Beam(width=2)) == [" g h"]
    # Ends elsewhere: by token, by string, by number.
    f = alphabet.tokenizer.token_to_id("f")
    assert alphabet.predict("c", stop=f) == [" d e"]
    assert alphabet.predict("c", stop=[" g", "e f"]) == [" d "]
    assert alphabet.predict("c", max_new_tokens=2) == [" d e"]
    for stop in (f, [" g", "e f"]):
        assert "".join(alphabet.stream("c", stop=stop)) == alphabet.predict("c", stop=stop)[0]
    assert list(alphabet.stream("c", stop="g")) == [" d", " e", " f", " "]
    score = alphabet.score(["a b c d", "d c b a"])["perplexity"]
    assert score[0] < 3 < score[1]


def test_an_answer_is_that_of_the_whole_model_without_a_cache(task):
    """Greedy, a token at a time; the scores are the sums of its log-probabilities."""
    texts, scores = task.predict(PROMPTS[:3], max_new_tokens=6, return_scores=True)
    for prompt, text, score in zip(PROMPTS, texts, scores, strict=False):
        ids = task.tokenizer.encode(prompt).numpy().tolist() or [3]
        new, total = [], 0.0
        while len(new) < 6 and 3 not in new:
            logits = task({"token_ids": np.array([ids + new], "int32")})[0, -1]
            logs = writing.log_softmax(ops.convert_to_numpy(logits))
            allowed = np.array([3, *range(5, 16)])
            new.append(int(allowed[logs[allowed].argmax()]))
            total += logs[new[-1]]
        whole = task.tokenizer.decode(ids + new)
        assert text == whole.removeprefix(task.tokenizer.decode(ids))
        assert score == pytest.approx(total, abs=1e-3)


@pytest.mark.graphs
def test_answers_do_not_depend_on_the_batch(task):
    for settings in ({"method": Greedy()}, {"method": NUCLEUS, "seed": 5}):
        texts = task.predict(PROMPTS, max_new_tokens=8, **settings)
        assert task.predict(PROMPTS, max_new_tokens=8, batch_size=1, **settings) == texts
    assert task.predict(PROMPTS, max_new_tokens=8, method=NUCLEUS, seed=6) != texts


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_a_stream_is_the_answer_in_pieces(kind, task):
    if kind == "bytes":
        task = writing.causal_lm(byte_level(), sigma=0.02)
    settings = {"method": Sampling(), "seed": 1, "max_new_tokens": 8}
    given = list(task.stream("a b", **settings))
    assert all(given)
    assert "".join(given) == task.predict("a b", **settings)[0]
    if kind == "bytes":  # most random bytes are no characters
        assert "\ufffd" in "".join(given)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_xla_writes_the_same(task):
    """Greedy, drawn and by beams, in batches of two shapes, and as a stream."""
    prompts = PROMPTS[:1] + PROMPTS[3:]
    for method in (Greedy(), Sampling(top_k=5), Beam(2, num_results=2)):
        options = {"method": method, "max_new_tokens": 5, "return_scores": True}
        texts, scores = task.predict(prompts, **options)
        compiled, again = task.predict(prompts, jit_compile=True, **options)
        assert compiled == texts
        assert again == pytest.approx(scores, abs=1e-4)
    stream = task.stream(prompts[0], max_new_tokens=5, jit_compile=True)
    assert "".join(stream) == task.predict(prompts[0], max_new_tokens=5)[0]


@pytest.mark.graphs
def test_streams_of_several_limits(task):
    """The compiled step is shared, and its graph does not know how many slots there are."""
    for limit in (5, 9):
        given = "".join(task.stream("h a b", max_new_tokens=limit))
        assert given == task.predict("h a b", max_new_tokens=limit)[0]


def test_scores_are_sums_over_the_text(task):
    texts = ["a b c", "", "h " * 150]
    found = task.score(texts, batch_size=2)
    assert found["tokens"].tolist() == [3, 0, 150]
    ids = task.tokenizer.encode(texts[2]).numpy()
    whole = np.append(3, ids)
    want = 0.0
    for start in (0, 64, 128):
        part = whole[start : start + 65]
        logs = writing.log_softmax(ops.convert_to_numpy(task({"token_ids": part[None, :-1]})))[0]
        want += logs[np.arange(len(part) - 1), part[1:]].sum()
    assert found["log_likelihood"][2] == pytest.approx(want, rel=1e-5)
    assert found["log_likelihood"][1] == 0
    assert found["perplexity"][1] == 1
    assert found["perplexity"][2] == pytest.approx(np.exp(-want / 150), rel=1e-5)


def test_a_preset_has_all(task, tmp_path):
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert type(again) is CausalLM
    assert again.predict(PROMPTS, max_new_tokens=4) == task.predict(PROMPTS, max_new_tokens=4)


def test_gpt_2_s_tokens():
    """One token ends a text and begins the next; there is no padding."""
    for roles in ({}, {"cls": END, "sep": END}):
        task = writing.causal_lm(byte_level(**roles))
        assert task.stop_ids == (256,)
        assert task.banned_ids(task.stop_ids) == (257, 258)
    assert len(task.predict(["", "é", "it's"], max_new_tokens=3)) == 3


@pytest.mark.parametrize(("total", "warmup"), [(None, 2000), (100_000, 2000), (500, 50)], ids=str)
def test_the_usual_optimizer_is_gpt_s(task, total, warmup):
    optimizer = task.usual_optimizer(total)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    assert schedule["learning_rate"] == 2.5e-4
    assert schedule["warmup_steps"] == warmup
    assert schedule["decay"] == ("constant" if total is None else "cosine")


@pytest.mark.parametrize(
    ("prompts", "settings", "error"),
    [
        (["a", "b " * 60], {"max_new_tokens": 8}, "max_positions=64.*60 tokens in prompt 1"),
        (["a"], {"max_new_tokens": 64}, "from 1 to 63.*Received: 64"),
        (["a"], {"max_new_tokens": 4, "stop": ["."], "method": 3}, "Received: 3"),
        (["a"], {"max_new_tokens": 4, "stop": [""]}, "not empty, or ids.*Received: ''"),
        (["a"], {"max_new_tokens": 4, "stop": 99}, "ids from 0 to 15. Received: 99"),
        (["a"], {"max_new_tokens": 4, "stop": None}, "ids from 0 to 15. Received: None"),
        (["a"], {"max_new_tokens": 4, "stop": [True]}, "ids from 0 to 15. Received: True"),
        ([None], {}, "prompts must be strings. Received: None as number 0"),
    ],
    ids=["too long", "too many", "method", "empty stop", "stop id", "none", "boolean", "no text"],
)
def test_bad_requests(task, prompts, settings, error):
    with pytest.raises((ValueError, TypeError), match=error):
        task.predict(prompts, **settings)


def test_bad_streams(task):
    with pytest.raises(TypeError, match=r"one string. Received: \['a'\]"):
        task.stream(["a"])
    with pytest.raises(ValueError, match="cannot be streamed"):
        task.stream("a", method=Beam(), max_new_tokens=4)
    with pytest.raises(ValueError, match="65 tokens in prompt 0"):
        task.stream("a " * 65, max_new_tokens=4)


def test_what_a_language_model_is_made_of(task):
    with pytest.raises(TypeError, match=r"requires a Decoder. Received: <Seq2Seq"):
        CausalLM(writing.translator().seq2seq, task.tokenizer)
    with pytest.raises(ValueError, match=r'name a "sep" token.* a BytePairTokenizer without one'):
        CausalLM(
            kbert.Decoder(task.decoder.config.replace(vocabulary_size=300)),
            BytePairTokenizer(CHARACTERS, [], special_tokens={}),
        )
    assert isinstance(task.decoder, keras.Model)
    assert tf.is_tensor(task(PADDED))


PADDED = {"token_ids": np.array([[5, 6, 0]]), "padding_mask": np.array([[1, 1, 0]])}


def test_the_usual_length_fits_a_small_model():
    small = writing.causal_lm(max_positions=12)
    assert small.predict("a b c", verbose=0) == small.predict("a b c", max_new_tokens=6, verbose=0)


def test_an_export_stops_at_ids(task, tmp_path):
    for options in ({}, {"format": "onnx"}):
        with pytest.raises(ValueError, match=r"`stop_ids` of an export must be ids.*Received: 'g'"):
            task.export(tmp_path, max_new_tokens=4, stop_ids=["g"], **options)
    assert not list(tmp_path.iterdir())
