"""GPT-BERT's objective: what each kind of row sees and predicts, and one model that does both."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.models.generators.as_decoder import as_decoder
from kbert.tasks import MaskedAndCausal
from kbert.training import AdamW

WORDS = [f"w{n}" for n in range(12)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    **{"vocabulary_size": 17, "hidden_size": 32, "num_layers": 2, "num_heads": 2},
    **{"intermediate_size": 48, "max_positions": 64, "dropout": 0.0, "attention_dropout": 0.0},
}
ROTARY = {"positions": "rotary", "num_segments": 0, "pooler_activation": None}
PRE_NORM = {
    **ROTARY,
    **{"block": "pre_norm", "feed_forward": "gated", "attention_pattern": ("global", 6)},
    **{"use_bias": False, "norm": "layer_no_bias"},
}
KINDS = {"bert": {}, "rotary": ROTARY, "pre_norm": PRE_NORM, "shared": {"num_layer_groups": 1}}


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer([*SPECIALS, *WORDS])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    """Documents that count: each word is followed by the third after it, from anywhere."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("counting")
    lines = []
    for _ in range(600):
        first, length = rng.integers(12), rng.integers(12, 40)
        lines += [" ".join(WORDS[(first + 3 * n + n // 4) % 12] for n in range(length)), ""]
    (folder / "text.txt").write_text("\n".join(lines))
    kbert.data.prepare_corpus(str(folder / "text.txt"), folder / "shards", tokenizer)
    return folder / "shards"


def drawn(task, seed=1):
    """The task, with weights of sigma 0.15."""
    rng = np.random.default_rng(seed)
    for weight in task.trainable_variables:
        weight.assign(rng.normal(0, 0.15, weight.shape))
    return task


def make(tokenizer, kind="rotary", **settings):
    config = kbert.EncoderConfig(**{**SIZES, **KINDS[kind]})
    return MaskedAndCausal(kbert.Encoder(config), tokenizer, **settings)


def batches(corpus, tokenizer, **settings):
    settings = {
        **{"sequence_length": 32, "batch_size": 16, "segments": "single", "causal_share": 0.25},
        **{"masked_share": 0.3, **settings},
    }
    return kbert.data.pretraining_dataset(corpus, tokenizer, **settings)


@pytest.fixture(scope="module")
def batch(corpus, tokenizer):
    return next(iter(batches(corpus, tokenizer).as_numpy_iterator()))


def test_every_fourth_row_is_causal_and_hides_nothing(corpus, tokenizer, batch):
    causal = batch["causal_mask"].max(axis=1)
    assert causal.tolist() == [0, 0, 0, 1] * 4
    np.testing.assert_array_equal(batch["causal_mask"], batch["padding_mask"] * causal[:, None])
    used = batch["mask_weights"] > 0
    seen = np.take_along_axis(batch["token_ids"], batch["mask_positions"], axis=1)
    kept = (seen == batch["mask_ids"]) & used
    assert kept[causal == 1].sum() == used[causal == 1].sum() > 0
    assert kept[causal == 0].sum() < 0.3 * used[causal == 0].sum()
    # All else is the stream without causal rows.
    plain = next(iter(batches(corpus, tokenizer, causal_share=None).as_numpy_iterator()))
    for name in ("mask_positions", "mask_ids", "mask_weights", "position", "padding_mask"):
        np.testing.assert_array_equal(batch[name], plain[name])
    np.testing.assert_array_equal(batch["token_ids"][causal == 0], plain["token_ids"][causal == 0])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_place_before(tokenizer, batch, kind):
    task = drawn(make(tokenizer, kind))
    logits = ops.convert_to_numpy(task(batch)["masked_lm"])
    inputs = {name: batch[name] for name in ("token_ids", "padding_mask", "causal_mask")}
    sequence = task.encoder(inputs)["sequence"]
    before = np.maximum(batch["mask_positions"] - 1, 0)
    expected = ops.convert_to_numpy(task.masked_lm(sequence, before))
    used = batch["mask_weights"] > 0
    np.testing.assert_allclose(logits[used], expected[used], atol=1e-5)

    # A causal row's prediction changes with no token from its own on; a masked row's does.
    changed = dict(batch, token_ids=batch["token_ids"].copy())
    row, column = np.arange(16), np.argmax(batch["mask_positions"], axis=1)
    at = batch["mask_positions"][row, column]
    for number in row:
        changed["token_ids"][number, at[number] :] = 5 + number % 12
    moved = np.abs(ops.convert_to_numpy(task(changed)["masked_lm"]) - logits)[row, column].max(-1)
    causal = batch["causal_mask"].max(axis=1)
    assert moved[causal == 1].max() < 1e-5
    assert np.median(moved[causal == 0]) > 2e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_is_the_encoder_of_causal_rows(tokenizer, batch, kind):
    task = drawn(make(tokenizer, kind))
    ids, mask = batch["token_ids"], batch["padding_mask"]
    decoder = as_decoder(task.encoder, task.masked_lm)
    found = decoder.logits(decoder({"token_ids": ids, "padding_mask": mask})["sequence"])
    inputs = {"token_ids": ids, "padding_mask": mask, "causal_mask": np.ones_like(ids)}
    expected = task.predictions_everywhere(task.encoder(inputs)["sequence"], mask).values
    real = mask[..., None] > 0
    np.testing.assert_allclose(
        ops.convert_to_numpy(found) * real, ops.convert_to_numpy(expected) * real, atol=1e-5
    )


def test_losses_are_sums_that_add_up(tokenizer, batch):
    task = drawn(make(tokenizer, z_loss=0.5))

    def values(part):
        losses, metrics = task.loss_terms(part, training=False)
        return {k: np.array([float(x) for x in pair]) for k, pair in {**losses, **metrics}.items()}

    whole = values(batch)
    halves = [values({k: x[i::2] for k, x in batch.items()}) for i in range(2)]
    for name, pair in whole.items():
        np.testing.assert_allclose(pair, halves[0][name] + halves[1][name], rtol=1e-5)
    np.testing.assert_allclose(
        whole["prediction_loss"], whole["mlm_loss"] + whole["lm_loss"], rtol=1e-5
    )
    causal = batch["causal_mask"].max(axis=1) == 1
    assert whole["lm_loss"][1] == batch["mask_weights"][causal].sum()
    logits = ops.convert_to_numpy(task(batch)["masked_lm"]).astype(np.float64)
    squares = np.log(np.exp(logits).sum(-1)) ** 2 * batch["mask_weights"]
    np.testing.assert_allclose(whole["z_loss"][0], 0.5 * squares.sum(), rtol=1e-5)
    assert "z_loss" not in make(tokenizer).loss_terms(batch, training=False)[0]


@pytest.mark.slow
def test_packed_rows_predict_the_same(corpus, tokenizer):
    task = drawn(make(tokenizer))
    sums = []
    for pack in (False, True):
        data = batches(
            corpus, tokenizer, pack=pack, batch_size=48, epochs=1, short_sequence_share=0.5
        )
        total = {}
        for one in data.as_numpy_iterator():
            losses, metrics = task.loss_terms(one, training=False)
            for name, pair in {**losses, **metrics}.items():
                total[name] = total.get(name, 0) + np.array([float(x) for x in pair])
        sums.append(total)
    assert sums[0].keys() == sums[1].keys()
    for name, pair in sums[0].items():
        np.testing.assert_allclose(pair, sums[1][name], rtol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.graphs
def test_it_learns_to_fill_and_to_write(corpus, tokenizer, tmp_path):
    keras.utils.set_random_seed(0)
    task = make(tokenizer, z_loss=1e-4)
    task.compile(AdamW(3e-3, bias_correction=True, ema=0.98))
    history = task.fit(batches(corpus, tokenizer).take(500), verbose=0)
    assert history.history["mlm_accuracy"][-1] > 0.5
    kbert.training.use_moving_average(task)
    held = task.evaluate(batches(corpus, tokenizer, seed=9).take(20), return_dict=True, verbose=0)
    assert held["mlm_accuracy"] > 0.9
    assert held["lm_accuracy"] > 0.5  # after one token the phase of the fourth step is not known

    # 0 3 6 9 | 1 4 7 10 | 2 5 …
    text = "w0 w3 w6 w9 w1 w4 w7 w10 w2 w5"
    (filled,) = task.predict([text.replace("w1 ", "[MASK] ")], top_k=1)
    assert filled["tokens"] == [["w1"]]
    assert task.write([text], max_new_tokens=3) == [" w8 w11 w3"]

    writer = task.causal_lm()
    for saved, kind in ((task, "masked_and_causal"), (writer, "causal_lm")):
        saved.save_to_preset(tmp_path / kind)
    again = kbert.tasks.Task.from_preset(tmp_path / "masked_and_causal")
    assert isinstance(again, MaskedAndCausal)
    assert again.z_loss == 1e-4
    masked = [text.replace("w1 ", "[MASK] ")]
    (answer,), (expected,) = again.predict(masked), task.predict(masked)
    assert answer["tokens"] == expected["tokens"]
    # A task computes its first answers eagerly, later ones in a graph, which rounds otherwise.
    np.testing.assert_allclose(answer["probabilities"], expected["probabilities"], rtol=1e-5)
    alone = kbert.tasks.CausalLM.from_preset(tmp_path / "causal_lm")
    assert alone.reads_cls
    assert alone.predict([text], max_new_tokens=3) == [" w8 w11 w3"]
    assert "".join(alone.stream(text, max_new_tokens=3)) == " w8 w11 w3"
    likely, not_so = alone.score([text, "w0 w1 w2 w3"], verbose=0)["perplexity"]
    assert likely < 4 < not_so


def test_what_does_not_fit_is_refused(corpus, tokenizer, batch, tmp_path):
    for changes, message in (
        ({"positions": "alibi"}, r"positions among learned, .*positions='alibi'"),
        ({"positions": "rotary"}, r"num_segments=0, unless .*num_segments=2, positions='rotary'"),
        ({"embedding_size": 8}, r"equal to `hidden_size`.*embedding_size=8, hidden_size=32"),
    ):
        config = kbert.EncoderConfig(**{**SIZES, **changes})
        with pytest.raises(ValueError, match=message):
            MaskedAndCausal(kbert.Encoder(config), tokenizer)
    for weight in (-1, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match=r"`z_loss` must be a number that is at least 0"):
            make(tokenizer, z_loss=weight)
    task = make(tokenizer)
    with pytest.raises(ValueError, match=r"must contain causal_mask: make the dataset with"):
        task.loss_terms({k: x for k, x in batch.items() if k != "causal_mask"}, training=False)
    other = kbert.tasks.Pretraining(task.encoder, tokenizer, next_sentence=False)
    for name in ("causal_mask", "order_ids"):  # it would predict what it sees
        rows = {**{k: x for k, x in batch.items() if k != "causal_mask"}, name: batch["token_ids"]}
        with pytest.raises(ValueError, match=rf"have no masked tokens: .*Pretraining and .*{name}"):
            other.loss_terms(rows, training=False)
    with pytest.raises(ValueError, match=r"no other library predicts a mask from the position"):
        task.save_to_preset(tmp_path, format="huggingface")
    with pytest.raises(ValueError, match=r"`causal_share` requires segments without a label"):
        batches(corpus, tokenizer, segments="pairs")
    gpt = kbert.WordTokenizer(["</S>", "<S>", "<UNK>", *WORDS])
    gpt.cls_id = None
    with pytest.raises(ValueError, match=r"reads_cls=True, a WordTokenizer without it"):
        kbert.tasks.CausalLM(task.causal_lm().decoder, gpt, reads_cls=True)
