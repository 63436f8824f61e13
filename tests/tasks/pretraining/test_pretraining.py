import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from tests.export import session
from tests.harness import KINDS
from tests.tasks import toy


def first(dataset):
    return {name: value.numpy() for name, value in next(iter(dataset)).items()}


def rows(batch, start, stop):
    return {name: value[start:stop] for name, value in batch.items()}


def log_softmax(x):
    x = np.asarray(x, "float64")
    return (
        x
        - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - x.max(-1, keepdims=True)
    )


def test_loss_terms_by_hand(task, tokenizer):
    batch = first(toy.batches(tokenizer, batch_size=6))
    batch["mask_weights"][2:4, 1] = 1  # two rows predict [CLS] too
    batch["mask_weights"][5] = 0
    batch["padding_mask"][4:] = 0  # two rows that only fill the batch up
    losses, metrics = task.loss_terms(batch, training=False)
    logits = task(batch)

    ids, weights = batch["mask_ids"], batch["mask_weights"]
    each = -np.take_along_axis(log_softmax(logits["masked_lm"]), ids[..., None], -1)[..., 0]
    assert float(losses["mlm_loss"][0]) == pytest.approx((each * weights).sum(), rel=1e-5)
    assert float(losses["mlm_loss"][1]) == float(metrics["mlm_accuracy"][1]) == weights.sum() == 7
    labels = batch["next_sentence_labels"]
    each = -log_softmax(logits["sentence"])[np.arange(6), labels]
    assert float(losses["nsp_loss"][0]) == pytest.approx(each[:4].sum(), rel=1e-5)
    assert float(losses["nsp_loss"][1]) == float(metrics["nsp_accuracy"][1]) == 4
    hits = np.argmax(logits["sentence"], -1) == labels
    assert float(metrics["nsp_accuracy"][0]) == hits[:4].sum()
    assert [float(x) for x in metrics["nsp_negatives"]] == [labels[:4].sum(), 4]


def test_loss_terms_add_up_over_rows(task, tokenizer):
    batch = first(toy.batches(tokenizer, batch_size=6))
    whole = task.loss_terms(batch, training=False)
    parts = [task.loss_terms(rows(batch, *r), training=False) for r in ((0, 1), (1, 6))]
    for group in (0, 1):
        for name, pair in whole[group].items():
            for k in (0, 1):
                total = sum(float(part[group][name][k]) for part in parts)
                assert float(pair[k]) == pytest.approx(total, rel=1e-5)


def test_without_next_sentence(config, tokenizer):
    encoder = kbert.Encoder(config.replace(pooler_activation=None, num_segments=0))
    task = kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False)
    batch = first(toy.batches(tokenizer, batch_size=2, next_sentence=False))
    losses, metrics = task.loss_terms(batch, training=False)
    assert set(losses) == {"mlm_loss"}
    assert set(metrics) == {"mlm_accuracy"}
    assert len(task.predict("[MASK]")[0]["tokens"][0]) == 5
    with pytest.raises(ValueError, match=r"no next-sentence head.*Received"):
        task.predict_next_sentence([("a", "b")])
    assert set(task.signatures()) == {"fill_mask", "encode"}


def test_next_sentence_needs_a_pooler(config, tokenizer):
    encoder = kbert.Encoder(config.replace(pooler_activation=None))
    with pytest.raises(ValueError, match=r"must have a pooler.*pooler_activation=None"):
        kbert.tasks.Pretraining(encoder, tokenizer)


@pytest.mark.parametrize("objective", ["next_sentence", "sentence_order"])
def test_a_sentence_objective_reads_the_first_token(config, tokenizer, objective):
    encoder = kbert.Encoder(config.replace(pooling="last"))
    objectives = {"next_sentence": False, objective: True}
    with pytest.raises(ValueError, match=r"pools the first token, \[CLS\].*pooling='last'"):
        kbert.tasks.Pretraining(encoder, tokenizer, **objectives)


def test_a_batch_without_labels_says_so(task, tokenizer):
    batch = first(toy.batches(tokenizer, batch_size=2, next_sentence=False))
    wanted = 'must contain next_sentence_labels.*segments="pairs".*Received: mask_ids'
    with pytest.raises(ValueError, match=wanted):
        task.loss_terms(batch, training=False)


@pytest.mark.parametrize(
    "dtype", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_losses_are_float32_under_mixed_precision(config, tokenizer, dtype):
    task = kbert.tasks.Pretraining(kbert.Encoder(config, dtype=dtype), tokenizer)
    losses, metrics = task.loss_terms(first(toy.batches(tokenizer, batch_size=2)), training=True)
    for pair in (*losses.values(), *metrics.values()):
        assert [keras.backend.standardize_dtype(x.dtype) for x in pair] == ["float32"] * 2
    answer = task.predict("the [MASK]", top_k=len(tokenizer.vocabulary))[0]
    assert sum(answer["probabilities"][0]) == pytest.approx(1, abs=1e-4)
    task.compile(AdamW(1e-3))
    history = task.fit(toy.batches(tokenizer), steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_predict_equals_the_model_on_one_text(task, tokenizer):
    text = "the [MASK] fox [MASK]"
    word = tokenizer.token_to_id
    ids = [tokenizer.cls_id, word("the"), tokenizer.mask_id, word("fox"), tokenizer.mask_id]
    out = task.encoder({"token_ids": np.array([[*ids, tokenizer.sep_id]])})
    logits = task.masked_lm(out["sequence"], np.array([[2, 4]]))
    expected = np.exp(log_softmax(logits))[0]
    answer = task.predict(text, top_k=3)[0]
    for mask in (0, 1):
        best = np.argsort(-expected[mask])[:3]
        assert answer["tokens"][mask] == [tokenizer.vocabulary[i] for i in best]
        np.testing.assert_allclose(answer["probabilities"][mask], expected[mask][best], rtol=1e-4)
    chosen = task.predict(text, candidates=["dog", "##ing"])[0]
    assert chosen["tokens"] == [["dog", "##ing"]] * 2
    np.testing.assert_allclose(
        chosen["probabilities"], expected[:, [word("dog"), word("##ing")]], rtol=1e-4
    )


def test_predict_takes_many_texts_in_any_order(task):
    texts = [
        "the [MASK]",
        "no mask here",
        "",
        "[MASK] " * 9,
        "a [MASK] dog jumps over the " + "lazy " * 20,
        b"the [MASK]",
    ]
    together = task.predict(texts * 3, batch_size=4)
    assert together[1] == together[2] == {"tokens": [], "probabilities": []}
    assert [len(answer["tokens"]) for answer in together[:6]] == [1, 0, 0, 9, 1, 1]
    by_themselves = [task.predict(text)[0] for text in texts]
    for alone, answer in zip(by_themselves * 3, together, strict=True):
        assert answer["tokens"] == alone["tokens"]
        if alone["tokens"]:
            np.testing.assert_allclose(answer["probabilities"], alone["probabilities"], rtol=1e-4)


def test_predict_nothing(task):
    assert task.predict([]) == []
    assert task.predict_next_sentence([]).shape == (0,)


def test_chunks_and_split_batches_keep_their_texts(task, monkeypatch):
    texts = ["the [MASK]", "red", "[MASK] fox [MASK]", "old", "a big [MASK]"]
    whole = task.predict(texts)
    pairs = [(text, "a dog") for text in texts]
    follows = task.predict_next_sentence(pairs)
    monkeypatch.setattr("kbert.inference.texts.CHUNK", 2)
    monkeypatch.setattr("kbert.tasks.pretraining.fill_mask.MASKS_AT_ONCE", 1)
    for answer, want in zip(task.predict(texts), whole, strict=True):
        assert answer["tokens"] == want["tokens"]
    np.testing.assert_allclose(task.predict_next_sentence(pairs), follows, rtol=1e-5)


def test_predict_refuses(task, tokenizer):
    with pytest.raises(ValueError, match=f"top_k must be from 1 to {tokenizer.vocabulary_size}.*0"):
        task.predict("[MASK]", top_k=0)
    with pytest.raises(ValueError, match="top_k must be from 1 to"):
        task.signatures(top_k=1000)
    with pytest.raises(ValueError, match=r"one vocabulary entry.*'foxes'"):
        task.predict("[MASK]", candidates=["foxes"])
    for size in (0, -1, 1.5):
        message = f"whole number of at least 1.*Received: batch_size={size}"
        with pytest.raises(ValueError, match=message):
            task.predict("[MASK]", batch_size=size)
        with pytest.raises(ValueError, match=message):
            task.predict_next_sentence([("a", "b")], batch_size=size)
    with pytest.raises(TypeError, match=r"texts must be strings. Received: None as number 1"):
        task.predict(["[MASK]", None])
    with pytest.raises(ValueError, match=r"two strings. Received: .* as number 1"):
        task.predict_next_sentence([("a", "b"), ("a",)])


def test_a_long_text_is_cut_but_no_mask_is_lost(task):
    short, long = "the [MASK] " + "a " * 36, "the [MASK] " + "a " * 90
    assert task.predict(long)[0]["tokens"] == task.predict(short)[0]["tokens"]
    with pytest.raises(ValueError, match=r"within the 40 tokens.*Received: text number 1"):
        task.predict(["fine [MASK]", "a " * 38 + "[MASK]"])
    task.predict("a " * 37 + "[MASK]")


def test_next_sentence_probability(task):
    pairs = [("the red pen", "it is day"), ("a", "the moon " * 40), ("", "")]
    found = task.predict_next_sentence(pairs)
    for (a, b), probability in zip(pairs, found, strict=True):
        features = task.build_inputs(task.tokenizer.encode([a]), task.tokenizer.encode([b]))
        logits = task.sentence(task.encode(features)["pooled"])
        assert probability == pytest.approx(np.exp(log_softmax(logits))[0, 0], rel=1e-4)


@pytest.mark.graphs
@pytest.mark.tensorflow
def test_one_graph_serves_all_calls(task, monkeypatch):
    """TensorFlow traces Python once a graph, so the encoder's `call` counts the graphs.

    A first small batch runs eagerly.
    """
    traces = []
    call = task.encoder.call

    def counted(*arguments, **options):
        if not tf.executing_eagerly():
            traces.append(1)
        return call(*arguments, **options)

    monkeypatch.setattr(task.encoder, "call", counted)
    for texts in (["[MASK]"] * 40, ["[MASK] " * 20, "a " * 33 + "[MASK]"], ["fox"], []):
        for top_k in (1, 4):
            task.predict(texts, top_k=top_k)
            task.predict(texts, candidates=["fox", "dog"])
    assert len(traces) == 1
    for pairs in ([("a", "b")], [("red", "fox " * 30)] * 7):
        task.predict_next_sentence(pairs)
    assert len(traces) == 2


@pytest.mark.parametrize("segments", ["pairs", pytest.param("halves", marks=pytest.mark.slow)])
def test_documents_of_one_sentence_say_what_an_accuracy_is_worth(
    config, tokenizer, tmp_path, segments
):
    """Their second segment is always from another document: with one answer all are right.

    From a text file to a step: the batches hold what the task reads.
    """
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"the {a} {b}." for a, b in [*toy.RULES.items()] * 9))
    dataset = kbert.data.pretraining_dataset(
        str(corpus),
        tokenizer,
        sequence_length=32,
        batch_size=4,
        segments=segments,
        cache_dir=tmp_path / "cache",
    )
    task = kbert.tasks.Pretraining(
        kbert.Encoder(config), tokenizer, sentence_order=segments == "halves"
    )
    history = task.fit(dataset, steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    name = "nsp" if segments == "pairs" else "sop"
    read = {"mlm_loss", "mlm_accuracy", "perplexity", f"{name}_loss", f"{name}_accuracy"}
    assert set(history) >= read
    assert history[f"{name}_negatives"] == history[f"{name}_majority"] == [1.0]
    assert f"{name}_majority" in task.shown_metrics


def test_the_more_frequent_answer_may_be_the_one_as_written(task, tokenizer):
    batch = first(toy.batches(tokenizer, batch_size=8))
    batch["next_sentence_labels"][:] = [1, 0, 0, 0, 0, 0, 0, 0]
    task.compile("sgd")
    data = tf.data.Dataset.from_tensors(batch)
    values = task.evaluate(data, verbose=0, return_dict=True)
    assert (values["nsp_negatives"], values["nsp_majority"]) == (0.125, 0.875)


@pytest.mark.slow
def test_learns_the_toy_corpus(config, tokenizer):
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128}
    small = config.replace(**sizes, initializer_range=0.05, dropout=0.0)
    task = kbert.tasks.Pretraining(kbert.Encoder(small), tokenizer)
    steps = 300
    task.compile(AdamW(WarmupDecay(2e-3, 2 * steps, 100)))
    task.fit(toy.batches(tokenizer), epochs=1, steps_per_epoch=steps, verbose=0)
    values = task.evaluate(toy.batches(tokenizer, seed=9), steps=10, verbose=0, return_dict=True)
    assert values["mlm_accuracy"] > 0.95
    assert values["perplexity"] == pytest.approx(np.exp(values["mlm_loss"]), rel=1e-5)
    assert values["nsp_accuracy"] > 0.95
    # The model saw pairs only, so ask in a pair's form.
    for colour, thing in toy.RULES.items():
        answer = task.predict(f"the {colour} [MASK]", candidates=list(toy.RULES.values()))[0]
        assert answer["tokens"][0][int(np.argmax(answer["probabilities"][0]))] == thing
    same = [(f"the {c} {t}", f"a {c} {t}") for c, t in toy.RULES.items()]
    other = [(a, same[(i + 1) % 6][1]) for i, (a, _) in enumerate(same)]
    assert task.predict_next_sentence(same).min() > 0.5 > task.predict_next_sentence(other).max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alibi", "grouped"])
def test_learns_with_what_configs_say(kind, config, tokenizer):
    """MosaicBERT's positions; EuroBERT's queries, and a table of the head's own."""
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128}
    small = config.replace(**sizes, **KINDS[kind], initializer_range=0.05, dropout=0.0)
    task = kbert.tasks.Pretraining(kbert.Encoder(small), tokenizer, next_sentence=False)
    task.compile(AdamW(WarmupDecay(2e-3, 600, 100)))
    task.fit(without_segments(small, tokenizer), epochs=1, steps_per_epoch=300, verbose=0)
    batches = without_segments(small, tokenizer, seed=9)
    values = task.evaluate(batches, steps=10, verbose=0, return_dict=True)
    assert values["mlm_accuracy"] > 0.95


def without_segments(config, tokenizer, **options):
    """Batches as the config has them."""
    batches = toy.batches(tokenizer, **options)
    if config.num_segments:
        return batches
    return batches.map(lambda batch: {k: x for k, x in batch.items() if k != "segment_ids"})


@pytest.mark.tensorflow
@pytest.mark.slow
def test_two_replicas_predict_and_export(config, tokenizer, mirrored, tmp_path):
    with mirrored.scope():
        task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    question = "the [MASK] fox"
    answer = task.predict(question)[0]
    with mirrored.scope():
        assert task.predict(question)[0]["tokens"] == answer["tokens"]
    path = task.export(tmp_path / "served", top_k=2)
    (served,) = session.ask(path, ("fill_mask", {"text": [question]}))
    assert [token.decode() for token in served["tokens"][0, 0]] == answer["tokens"][0][:2]
    task.save_to_preset(tmp_path / "preset")
    again = kbert.tasks.Pretraining.from_preset(tmp_path / "preset").predict(question)[0]
    assert again["tokens"] == answer["tokens"]
    np.testing.assert_allclose(again["probabilities"], answer["probabilities"], rtol=1e-4)


def pairs_in_order(tokenizer, **settings):
    """Batches whose labels say that the sentences are swapped: "a …" before "the …"."""

    def swap(batch):
        batch = dict(batch)
        labels = batch.pop("next_sentence_labels")
        row = tf.cast(labels[:, None] == 1, tf.int32)
        the, a = tokenizer.token_to_id("the"), tokenizer.token_to_id("a")
        ids = batch["token_ids"]
        swapped = tf.where(ids == the, a, tf.where(ids == a, the, ids))
        batch["token_ids"] = row * swapped + (1 - row) * ids
        return batch | {"sentence_order_labels": labels}

    return toy.batches(tokenizer, **settings).map(swap)


@pytest.mark.slow
def test_sentence_order_learns_and_answers(config, tokenizer, tmp_path):
    keras.utils.set_random_seed(1)
    small = config.replace(hidden_size=32, num_layers=1, dropout=0.0, attention_dropout=0.0)
    task = kbert.tasks.Pretraining(kbert.Encoder(small), tokenizer, sentence_order=True)
    assert not task.next_sentence
    task.compile(AdamW(WarmupDecay(3e-3, 300, 20)))
    task.fit(pairs_in_order(tokenizer), steps_per_epoch=100, verbose=0)
    values = task.evaluate(pairs_in_order(tokenizer, seed=9), steps=5, verbose=0, return_dict=True)
    assert values["sop_accuracy"] > 0.95
    assert values["sop_loss"] < 0.3
    assert not any(name.startswith("nsp") for name in values)
    pairs = [("the red pen", "a red pen"), ("a red pen", "the red pen")]
    found = task.predict_sentence_order(pairs)
    assert found[0] > 0.5 > found[1]
    with pytest.raises(ValueError, match="no next-sentence head"):
        task.predict_next_sentence(pairs)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    np.testing.assert_allclose(again.predict_sentence_order(pairs), found, rtol=1e-5)
    entries = task.signatures()
    assert list(entries) == ["fill_mask", "sentence_order", "encode"]
    texts = [tf.constant(list(side)) for side in zip(*pairs, strict=True)]
    served = entries["sentence_order"].function(*texts)["probability"]
    np.testing.assert_allclose(served, found, rtol=1e-4)


def with_spans(batch):
    """The masked word of the toy sentence is a span of one token."""
    positions = batch["mask_positions"]
    return batch | {"span_starts": positions, "span_ends": positions}


def test_span_boundary_terms_by_hand(config, tokenizer):
    keras.utils.set_random_seed(1)
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer, span_boundary=True)
    batch = with_spans(first(toy.batches(tokenizer, batch_size=4)))
    batch["mask_weights"][3, 1] = 1  # a token far behind the start of its span
    batch["mask_positions"][3, 1] = 15
    batch["span_starts"] = batch["span_starts"].copy()
    batch["span_starts"][3, 1] = 0
    losses, metrics = task.loss_terms(batch, training=False)
    assert set(losses) == {"mlm_loss", "nsp_loss", "sbo_loss"}
    logits = task(batch)["span_boundary"]
    each = -np.take_along_axis(log_softmax(logits), batch["mask_ids"][..., None], -1)[..., 0]
    assert float(losses["sbo_loss"][0]) == pytest.approx(each[:, 0].sum(), rel=1e-5)
    assert float(losses["sbo_loss"][1]) == 4  # the fifth lies behind the places that SpanBERT has
    assert float(losses["mlm_loss"][1]) == 5
    hits = np.argmax(logits, -1)[:, 0] == batch["mask_ids"][:, 0]
    assert float(metrics["sbo_accuracy"][0]) == hits.sum()


@pytest.mark.slow
def test_span_boundary_learns(config, tokenizer, tmp_path):
    """The token before the masked one decides it: it is the boundary's left end."""
    keras.utils.set_random_seed(1)
    small = config.replace(hidden_size=32, initializer_range=0.05, dropout=0.0, num_layers=1)
    settings = {"next_sentence": False, "span_boundary": True}
    task = kbert.tasks.Pretraining(kbert.Encoder(small), tokenizer, **settings)
    task.compile(AdamW(WarmupDecay(5e-3, 300, 20)))
    data = toy.batches(tokenizer, next_sentence=False).map(with_spans)
    task.fit(data, steps_per_epoch=150, verbose=0)
    held_out = toy.batches(tokenizer, next_sentence=False, seed=9).map(with_spans)
    values = task.evaluate(held_out, steps=5, verbose=0, return_dict=True)
    assert values["sbo_accuracy"] > 0.95
    assert values["sbo_loss"] < 0.5
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    assert again.settings == task.settings
    batch = with_spans(first(toy.batches(tokenizer, next_sentence=False)))
    np.testing.assert_allclose(
        again(batch)["span_boundary"], task(batch)["span_boundary"], atol=1e-5
    )


def test_another_library_gets_the_model_without_the_boundary_head(
    config, tokenizer, tmp_path, caplog
):
    encoder = kbert.Encoder(config)
    task = kbert.tasks.Pretraining(encoder, tokenizer, span_boundary=True)
    task.save_to_preset(tmp_path, format="huggingface")
    assert "huggingface has no span_boundary head: it is left out" in caplog.text
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    assert again.predict("the [MASK]")[0]["tokens"] == task.predict("the [MASK]")[0]["tokens"]


def test_objectives_that_do_not_go_together(config, tokenizer):
    encoder = kbert.Encoder(config)
    with pytest.raises(ValueError, match="next_sentence=True, sentence_order=True"):
        kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=True, sentence_order=True)
    bare = kbert.Encoder(config.replace(pooler_activation=None))
    with pytest.raises(ValueError, match=r"must have a pooler.*sentence_order=True and a config"):
        kbert.tasks.Pretraining(bare, tokenizer, sentence_order=True)
    batch = first(toy.batches(tokenizer, batch_size=2))
    task = kbert.tasks.Pretraining(encoder, tokenizer, sentence_order=True)
    with pytest.raises(ValueError, match=r'must contain sentence_order_labels.*segments="halves"'):
        task.loss_terms(batch, training=False)
    task = kbert.tasks.Pretraining(encoder, tokenizer, span_boundary=True)
    with pytest.raises(ValueError, match=r'must contain span_starts, span_ends.*masking="span"'):
        task.loss_terms(batch, training=False)
    with pytest.raises(ValueError, match=r"no sentence-order head.*Received: a task with"):
        task.predict_sentence_order([("a", "b")])
