"""Question answering: against transformers, through windows, on any text."""

import contextlib
import itertools

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

import kbert
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.data.tables.table import Table
from kbert.models.weights import named_weights
from kbert.tasks import QuestionAnswerer
from kbert.tokenizers import BytePairTokenizer, UnigramTokenizer, train_byte_pair, train_unigram
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import gradients, make_reference
from tests.tasks.question_answering.questions import toy_questions
from tests.tasks.question_answering.test_answer_spans import all_spans

pytestmark = pytest.mark.tensorflow

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
TABLE = toy_questions(12, longest=50)
NO_ANSWERS = toy_questions(40, seed=3, unanswerable=True)


@pytest.fixture(scope="module")
def task(config, tokenizer):
    keras.utils.set_random_seed(1)
    return QuestionAnswerer(kbert.Encoder(config), tokenizer)


def table_of(question, context, answer="", start=0):
    columns = {"question": [question], "context": [context], "answers": [[]], "answer_starts": [[]]}
    if answer:
        columns |= {"answers": [[answer]], "answer_starts": [[start]]}
    return Table(columns)


@pytest.fixture(scope="module")
def theirs(tokenizer, tmp_path_factory):
    """A model of transformers, and its folder."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = make_reference(
        *("bert", "ForQuestionAnswering"),
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id,
    )
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model, folder


def test_loss_gradients_and_answers_are_those_of_transformers(theirs):
    """One padded batch of windows here, a window at a time without padding there."""
    import torch

    model, folder = theirs
    task = QuestionAnswerer.from_preset(folder, max_answer_length=4, n_best=7)
    table = Table(TABLE).take(range(5))
    rows = task.tokenize(table, labelled=True)
    assert len(rows) > len(table)  # contexts that do not fit
    features = task.assemble(rows.gather(np.arange(len(rows))))
    batch = features | {"label_weights": tf.ones(len(rows))}

    loss, spans, nulls = 0.0, [[] for _ in range(len(table))], [[] for _ in range(len(table))]
    for row in range(len(rows)):
        length = rows.lengths[row]
        ids, segments, begins, limits, labels = (
            features[name][row].numpy()
            for name in ("token_ids", "segment_ids", "answer_starts", "answer_ends", "labels")
        )
        out = model(
            input_ids=torch.tensor(ids[None, :length]),
            token_type_ids=torch.tensor(segments[None, :length]),
            start_positions=torch.tensor(labels[:1]).long(),
            end_positions=torch.tensor(labels[1:]).long(),
        )
        loss = loss + out.loss / len(rows)
        start, end = (x[0].detach().numpy() for x in (out.start_logits, out.end_logits))
        example = rows.examples[row]
        spans[example] += all_spans(start, end, begins[:length], limits[:length], 4)
        nulls[example].append(start[0] + end[0])
    loss.backward()

    for row, answer in enumerate(task.predict(table)):
        wanted = sorted(spans[row], key=lambda span: -span[0])[:7]
        assert (answer["start"], answer["end"]) == wanted[0][1:]
        assert_close([answer["score"], answer["null_score"]], [wanted[0][0], min(nulls[row])], 1e-4)
        weights = np.exp([score - wanted[0][0] for score, _, _ in wanted])
        found = [entry["probability"] for entry in answer["n_best"]]
        assert_close(found, weights / weights.sum(), 1e-4)

    def our_loss():
        ((total, count),) = task.loss_terms(batch, training=False)[0].values()
        return total / count

    assert float(our_loss()) == pytest.approx(loss.item(), rel=1e-4)
    weights = named_weights(task.encoder, "encoder") | named_weights(task.span, "span")
    grads = {name: p.grad.numpy() for name, p in model.named_parameters()}
    grads = import_model(model.config.to_dict(), grads, "the reference").arrays
    found = gradients(our_loss, weights)
    # A softmax does not feel what all its logits have in common.
    for name in ("span/dense/bias", "encoder/layers/3/feed_forward_norm/beta"):
        for values in (found, grads):
            assert np.abs(values.pop(name)).max() < 1e-6
    assert_gradients_close(found, {name: grads[name] for name in found})


def byte_level(texts):
    return BytePairTokenizer(*train_byte_pair(texts, 330))


def sentencepiece(texts):
    return UnigramTokenizer(train_unigram(texts, 120))


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def any_task(request, config, tokenizer):
    """A task with each kind of tokenizer; with byte-level pieces as RoBERTa, without segments."""
    if request.param != "wordpiece":
        texts = [*TABLE["context"], *TABLE["question"]] * 3
        make = {"bpe": byte_level, "unigram": sentencepiece}[request.param]
        tokenizer = make(texts)
    changes = {"vocabulary_size": tokenizer.vocabulary_size}
    if tokenizer.pair_separators == 2:
        changes["num_segments"] = 0
    keras.utils.set_random_seed(1)
    return QuestionAnswerer(kbert.Encoder(config.replace(**changes)), tokenizer)


def test_rows_are_windows_with_the_answer_labelled(any_task):
    tokenizer, table = any_task.tokenizer, Table(TABLE)
    rows = any_task.tokenize(table, labelled=True)
    features = any_task.assemble(rows.gather(np.arange(len(rows))))
    ids = features["token_ids"].numpy()
    ends = [tokenizer.cls_id, *[tokenizer.sep_id] * (1 + tokenizer.pair_separators)]
    assert tokenizer.pair_separators == (2 if tokenizer.kind == "bpe" else 1)
    found = np.zeros(len(table), int)
    for row, example in enumerate(rows.examples):
        own = ids[row][features["padding_mask"][row].numpy() > 0]
        assert [i for i in own if i in ends] == ends
        assert len(own) == rows.lengths[row] <= 40
        question = tokenizer.encode(table["question"][example]).numpy()
        assert own[1 : 1 + len(question)].tolist() == question.tolist()
        first, last = features["labels"][row].numpy()
        if not first:
            assert not last
            continue
        found[example] += 1
        answer = tokenizer.decode(ids[row, first : last + 1].tolist()).strip()
        assert answer.lower() == table["answers"][example][0].lower()
    assert (found >= 1).all()
    assert (np.bincount(rows.examples) > 1).any()


def check_answer(answer, context, threshold=None):
    entries = answer["n_best"]
    for entry in (answer, *entries):
        assert context[entry["start"] : entry["end"]] == entry["answer"] == entry["answer"].strip()
    assert [e["probability"] for e in entries] == sorted(e["probability"] for e in entries)[::-1]
    assert len({(e["start"], e["end"]) for e in entries}) == len(entries) <= 21
    assert sum(e["probability"] for e in entries) <= 1 + 1e-5
    if entries:
        assert answer["answer"] == entries[0]["answer"] or threshold is not None
        assert sum(e["probability"] for e in entries) > 0.999
    else:
        assert (answer["answer"], answer["probability"]) == ("", 0.0)


ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("the queen. 北京 한국어 e\u0301\u200b 👍🏽 \n\x00\ufffd"), max_size=99),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=3))
def test_an_answer_is_a_piece_of_any_text(any_task, pairs):
    for (_, context), answer in zip(pairs, any_task.predict(pairs, verbose=0), strict=True):
        check_answer(answer, context)


def test_a_question_is_answered_alone_as_in_a_batch(task):
    together = task.predict(TABLE)
    assert [answer["id"] for answer in together] == TABLE["id"]
    for row in (0, 5, 11):
        (alone,) = task.predict([(TABLE["question"][row], TABLE["context"][row])])
        assert "id" not in alone
        assert (alone["start"], alone["end"]) == (together[row]["start"], together[row]["end"])
        assert alone["probability"] == pytest.approx(together[row]["probability"], rel=1e-4)
    assert task.predict([]) == []


def test_a_context_of_many_questions_is_read_once(task, monkeypatch):
    read = []
    encode = task.tokenizer.encode_with_offsets
    monkeypatch.setattr(
        *(task.tokenizer, "encode_with_offsets"),
        lambda texts, unit: read.append(len(texts)) or encode(texts, unit=unit),
    )
    pairs = [(f"{word}?", context) for context in ("a dog", "the moon") for word in "abcde"]
    assert len(task.predict(pairs)) == 10
    assert read == [2]


@pytest.fixture(scope="module")
def trained(config, tokenizer):
    """It has learned the toy's rule, and to say that there is no answer."""
    keras.utils.set_random_seed(1)
    deep = config.replace(num_layers=2, **NO_DROPOUT)
    task = QuestionAnswerer(kbert.Encoder(deep), tokenizer)
    data = toy_questions(600, longest=14, unanswerable=True)
    task.fit(data, epochs=18, learning_rate=1e-2, verbose=0)
    return task


@pytest.mark.slow
def test_it_learns_a_rule_and_when_there_is_no_answer(trained):
    assert trained.null_threshold == 0.0
    held_out = toy_questions(150, seed=1, unanswerable=True)
    scores = trained.evaluate(held_out)
    assert scores["HasAns_exact"] > 80
    assert scores["NoAns_exact"] > 80
    assert scores["best_f1"] >= scores["f1"] - 1e-6
    answers = trained.predict(held_out)
    for answer, context in zip(answers, held_out["context"], strict=True):
        check_answer(answer, context, threshold=0.0)
        chosen = "" if answer["null_score"] > answer["score"] else answer["answer"]
        assert answer["answer"] == chosen
    only = {k: [v[i] for i in range(150) if held_out["answers"][i]] for k, v in held_out.items()}
    assert set(trained.evaluate(only)) == {"loss", "exact", "f1"}


def test_the_null_threshold_is_tuned(task, config, tokenizer):
    keras.utils.set_random_seed(1)
    tuned = QuestionAnswerer(kbert.Encoder(config), tokenizer)
    scores = tuned.tune_null_threshold(NO_ANSWERS)
    assert scores["f1"] == pytest.approx(scores["best_f1"])
    assert scores["f1"] == pytest.approx(tuned.evaluate(NO_ANSWERS)["f1"])
    nulls = sorted(x["null_score"] - x["score"] for x in tuned.predict(NO_ANSWERS))
    halfway = [(a + b) / 2 for a, b in itertools.pairwise(nulls)]
    outside = [nulls[0] - 0.5, nulls[-1] + 0.5]
    assert min(abs(x - tuned.null_threshold) for x in halfway + outside) < 1e-5
    with pytest.raises(ValueError, match=r"without an answer.*Received: 12 questions, all with"):
        task.tune_null_threshold(TABLE)


def test_to_answer_nothing_is_a_threshold_too(config, tokenizer):
    tuned = QuestionAnswerer(kbert.Encoder(config), tokenizer)
    wrong = {**NO_ANSWERS, "answers": [["zzz"] if a else [] for a in NO_ANSWERS["answers"]]}
    scores = tuned.tune_null_threshold(wrong)
    share = np.mean([not answers for answers in wrong["answers"]])
    assert scores["NoAns_f1"] == 100
    assert scores["f1"] == pytest.approx(100 * share)
    assert not any(answer["answer"] for answer in tuned.predict(wrong))
    three = [*np.flatnonzero([bool(a) for a in wrong["answers"]])[:2]]
    three.append(wrong["answers"].index([]))
    third = {name: [column[i] for i in three] for name, column in wrong.items()}
    assert tuned.tune_null_threshold(third)["NoAns_f1"] == 100  # 1/3 is no round number


@pytest.mark.slow
def test_data_without_unanswerable_questions_always_gets_an_answer(config, tokenizer):
    task = QuestionAnswerer(kbert.Encoder(config), tokenizer)
    task.fit(TABLE, epochs=1, verbose=0)
    assert task.null_threshold is None
    assert all(answer["answer"] for answer in task.predict(TABLE))


def test_long_questions_are_cut_and_counted(config, tokenizer, caplog):
    task = QuestionAnswerer(kbert.Encoder(config), tokenizer, max_question_length=5)
    pairs = [("the red " * 9, "the moon"), ("he?", "the dog")]
    rows = task.tokenize(
        Table(dict(zip(("question", "context"), zip(*pairs, strict=True), strict=True))),
        labelled=False,
    )
    assert rows.cut == 1
    assert rows.lengths.tolist() == [1 + 5 + 1 + 2 + 1, 1 + 2 + 1 + 2 + 1]
    task.predict(pairs)
    assert "1 of 2 questions have more than 5 tokens" in caplog.text


def test_presets_keep_it(config, tokenizer, tmp_path):
    keras.utils.set_random_seed(1)
    task = QuestionAnswerer(kbert.Encoder(config), tokenizer, null_threshold=0.0)
    task.save_to_preset(tmp_path / "ours")
    again = kbert.tasks.Task.from_preset(tmp_path / "ours")
    assert isinstance(again, QuestionAnswerer)
    assert again.settings == task.settings
    assert again.predict(TABLE) == task.predict(TABLE)
    other = QuestionAnswerer.from_preset(tmp_path / "ours", null_threshold=None, n_best=2)
    assert all(len(answer["n_best"]) == 2 for answer in other.predict(TABLE))


@pytest.mark.slow
def test_transformers_reads_it(task, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    task.save_to_preset(tmp_path, format="huggingface")
    model = transformers.BertForQuestionAnswering.from_pretrained(tmp_path).eval()
    rows = task.tokenize(Table(TABLE), labelled=False)
    batch = task.assemble(rows.gather(np.arange(1)))
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
    names["padding_mask"] = "attention_mask"
    out = model(**{names[n]: torch.tensor(batch[n].numpy()).long() for n in names})
    logits = task(batch)
    real = batch["padding_mask"].numpy() > 0
    for name in ("start", "end"):
        wanted = getattr(out, f"{name}_logits").detach().numpy()
        assert_close(logits[name].numpy()[real], wanted[real], 1e-4)


def test_a_new_head_fits_any_encoder(config, tokenizer, tmp_path):
    kbert.Encoder(config.replace(pooler_activation=None)).save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    new = QuestionAnswerer.from_preset(tmp_path, new_head=True, max_length=24)
    assert new.settings["max_length"] == 24
    assert len(new.predict(TABLE)) == 12


@pytest.mark.slow
def test_two_replicas_train_as_one(config, tokenizer, mirrored):
    """Windows of several lengths, and a last batch that is not full."""

    def trained(scope):
        keras.utils.set_random_seed(1)
        with scope:
            task = QuestionAnswerer(kbert.Encoder(config.replace(**NO_DROPOUT)), tokenizer)
        history = task.fit(TABLE, epochs=2, batch_size=8, learning_rate=1e-3, verbose=0)
        return history.history["loss"], task.get_weights()

    one, two = trained(contextlib.nullcontext()), trained(mirrored.scope())
    np.testing.assert_allclose(two[0], one[0], rtol=1e-4)
    for found, wanted in zip(two[1], one[1], strict=True):
        assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"answer_starts": [[3]]}, "row 0 of the data: .*Received: 'dog' at 3, .*has ' do'"),
        ({"answer_starts": [[-1]]}, "Received: 'dog' at -1"),
        ({"answer_starts": [[]]}, "row 0 of the data: .*1 answers, 0 entries"),
        ({"answer_starts": [["4"]]}, r"row 0 of the data: .*whole numbers.*Received: \['4'\]"),
        ({"answer_starts": [4]}, "must be a list of whole numbers.*Received: 4"),
        ({"answers": [[""]]}, "Received: '' at 4"),
    ],
)
def test_bad_answers_name_their_row(task, columns, message):
    data = table_of("he?", "the dog", "dog", 4).columns
    with pytest.raises(ValueError, match=message):
        task.evaluate({**data, **columns})
    with pytest.raises(ValueError, match="no column 'answers'"):
        task.evaluate([("he?", "the dog")])
    with pytest.raises(ValueError, match=r"`first` and `second`. Received: the columns \['text'\]"):
        task.predict(["he?"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_question_length": 37}, "a token of the context. Received: max_question_length=37"),
        ({"doc_stride": 28}, "doc_stride must be from 1 to 27.*Received: doc_stride=28"),
        ({"doc_stride": 0}, "`doc_stride` must be .*at least 1 .*Received: 0"),
        ({"max_length": 41}, "max_length must be between 4 and 40"),
        ({"n_best": 0}, "`n_best` must be a whole number of at least 1. Received: 0"),
        ({"max_answer_length": 2.5}, "`max_answer_length` must be .*Received: 2.5"),
        ({"null_threshold": "0"}, "`null_threshold` must be a number or None. Received: '0'"),
    ],
)
def test_bad_settings(config, tokenizer, changes, message):
    with pytest.raises(ValueError, match=message):
        QuestionAnswerer(kbert.Encoder(config), tokenizer, **changes)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("float16", "mixed_bfloat16"))],
)
def test_a_model_in_half_precision_answers_and_is_served(config, tokenizer, tmp_path, dtype):
    """Scores are float32 in `predict` and in a version, whatever the weights are stored in."""
    keras.utils.set_random_seed(1)
    task = QuestionAnswerer(kbert.Encoder(config, dtype=dtype), tokenizer)
    pair = {"question": ["what jumps ?"], "context": ["the quick fox jumps over the dog"]}
    (answer,) = task.predict(pair)
    served = tf.saved_model.load(task.export(tmp_path)).signatures["answer"]
    found = served(**{name: tf.constant(x) for name, x in pair.items()})
    assert {x.dtype for x in found.values()} == {tf.string, tf.int32, tf.float32}
    assert found["answer"].numpy()[0].decode() == answer["answer"]
    assert float(found["score"][0]) == pytest.approx(answer["score"], abs=0.05)
