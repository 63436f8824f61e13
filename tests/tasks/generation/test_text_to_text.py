"""Texts from texts: tables, prefixes, references, long sources, and what is kept and exported."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.tables.table import Table
from kbert.data.translation.framing import Ends, Framing, framed
from kbert.data.translation.pairs import encode_pairs
from kbert.decoding import Beam, Constraints, Greedy, Sampling
from kbert.metrics import bleu, rouge
from kbert.tasks import TextToText
from kbert.tasks.generation.options import GenerationOptions
from kbert.tasks.generation.translation_batches import pair_batches
from tests.tasks.generation import writing

SOURCES = ["a b c", "", "d", "h g f e d c b a"]


def answerer(sigma=0.6, **settings) -> TextToText:
    keras.utils.set_random_seed(1)
    config = kbert.Seq2SeqConfig(
        vocabulary_size=16, max_positions=32, initializer_range=sigma, **writing.SIZES
    )
    return TextToText(kbert.Seq2Seq(config), writing.tokenizer(), **settings)


@pytest.fixture(scope="module")
def task():
    return answerer()


def features(task, table, labelled=True):
    rows = task.tokenize(task.as_table(table), labelled=labelled)
    columns = rows.gather(np.arange(len(rows)))
    return rows, {name: np.asarray(x) for name, x in task.assemble(columns).items()}


def shown(task, ids):
    return " ".join(task.tokenizer.id_to_token(int(i)) for i in ids)


def test_a_row_is_source_and_target_in_their_special_tokens():
    task = answerer(prefix="h ")
    rows, batch = features(task, [("a b", "c"), ("d", "e f")])
    assert shown(task, batch["encoder_token_ids"][0]) == "h a b [SEP]"
    assert shown(task, batch["encoder_token_ids"][1]) == "h d [SEP] [PAD]"
    assert batch["encoder_padding_mask"].tolist() == [[1] * 4, [1, 1, 1, 0]]
    assert shown(task, batch["decoder_token_ids"][0]) == "[CLS] c [PAD] [PAD]"
    assert shown(task, batch["targets"][1]) == "e f [SEP] [PAD]"
    assert batch["weights"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert rows.lengths.tolist() == [6, 6]


def test_the_tokens_of_bart_and_of_t5():
    bart = answerer(special_tokens="all", generation={"decoder_start_token_id": 3})
    _, batch = features(bart, [("a", "b")])
    assert shown(bart, batch["encoder_token_ids"][0][:3]) == "[CLS] a [SEP]"
    assert shown(bart, batch["decoder_token_ids"][0][:3]) == "[SEP] [CLS] b"
    assert shown(bart, batch["targets"][0][:3]) == "[CLS] b [SEP]"
    assert bart.framing.source == bart.framing.target == Ends((2,), (3,))
    t5 = answerer(generation={"decoder_start_token_id": 0, "eos_token_id": 3})
    _, batch = features(t5, [("a", "b")])
    assert shown(t5, batch["decoder_token_ids"][0][:2]) == "[PAD] b"
    # What is decoded begins alike.
    decoded = bart.decode(
        bart.pair_rows.features(bart.pair_rows.sources(["a"]).ids, 16), Greedy(), 4
    )
    assert int(np.asarray(decoded.token_ids)[0, 0, 0]) == bart.tokenizer.cls_id
    assert bart.predict("a", max_new_tokens=1) == [""]


def test_framing_of_any_number_of_tokens():
    ids, mask = framed(
        tf.constant([[7, 8, 9, 9, 9, 9]]), tf.constant([[2]]), Ends((1, 2), (3, 4)), 0
    )
    assert ids.numpy().tolist() == [[1, 2, 7, 8, 3, 4]]
    assert mask.numpy().tolist() == [[1] * 6]
    framing = Framing.of(writing.tokenizer(), special_tokens="all")
    assert (framing.longest_text(9), len(framing.source)) == (8, 2)


def test_data_in_every_form_gives_the_same_table(task):
    expected = {"text": ["a b", "c"], "target": ["d", "e"]}
    pairs = [("a b", "d"), ("c", "e")]
    forms = [
        (pairs, None),
        (["a b", "c"], ["d", "e"]),
        ((["a b", "c"], ["d", "e"]), None),
        ({"first": ["a b", "c"], "second": ["d", "e"]}, None),
        (expected, None),
        (Table(expected), None),
        ([{"text": "a b", "target": "d"}, {"text": "c", "target": "e"}], None),
    ]
    for data, targets in forms:
        assert task.as_table(data, targets).columns == expected


def test_each_reference_is_a_row_and_the_best_one_counts(task):
    table = {"text": ["a b", "c"], "target": [["d", "e f"], ["g"]]}
    rows, batch = features(task, table)
    assert rows.examples.tolist() == [0, 0, 1]
    assert [shown(task, x).split(" [SEP]")[0] for x in batch["targets"]] == ["d", "e f", "g"]
    answers, references = ["e f", "h"], [["d", "e f"], ["g"]]
    scores = task.score(task.as_table(table), answers)
    assert scores["rouge1"] == rouge(answers, references)["rouge1"].f1 == 50
    assert scores["bleu"] == bleu(answers, [["d", "e f"], ["g", "g"]]).score
    assert list(scores) == task.score_names(task.as_table(table))
    chinese = Table({"text": ["a"], "target": ["\u732b"]})
    assert task.score_names(chinese) == ["bleu", "chrf"]
    assert list(task.score(chinese, ["\u732b"])) == ["bleu", "chrf"]


@pytest.mark.parametrize("target", [3, [], ["a", 4]], ids=str)
def test_a_target_that_is_no_text_is_named(task, target):
    table = Table({"text": ["a", "b"], "target": ["c", target]})
    with pytest.raises(ValueError, match=r"row 1 of the data: 'target' must be a string or a list"):
        task.tokenize(table, labelled=True)


def test_long_sources_are_truncated_read_in_windows_or_refused(caplog):
    long = "a b c d e f g"
    truncating = answerer(max_length=5, prefix="h ")
    assert shown(truncating, truncating.pair_rows.sources([long]).ids[0]) == "h a b c [SEP]"
    assert truncating.predict([long, "a"], max_new_tokens=4) == truncating.predict(
        ["a b c", "a"], max_new_tokens=4
    )
    assert "1 of 2 examples are longer than 5 tokens" in caplog.text
    windows = answerer(max_length=5, prefix="h ", long_sources="windows")
    sources = windows.pair_rows.sources(["a", long, ""])
    assert [shown(windows, x) for x in sources.ids] == [
        *("h a [SEP]", "h a b c [SEP]", "h d e f [SEP]", "h g [SEP]", ""),
    ]
    assert (sources.examples.tolist(), sources.cut) == ([0, 1, 1, 1, 2], 0)
    parts, part_scores = windows.predict(
        ["a b c", "d e f", "g"], max_new_tokens=4, return_scores=True
    )
    (joined, empty), scores = windows.predict([long, ""], max_new_tokens=4, return_scores=True)
    assert (joined, empty) == ("\n".join(filter(None, parts)), "")
    np.testing.assert_allclose(scores, [part_scores.sum(), 0], rtol=1e-5)
    # Training has one row for an example, also with windows.
    assert len(windows.tokenize(windows.as_table([(long, "a")]), labelled=True)) == 1
    refusing = answerer(max_length=5, long_sources="refuse")
    with pytest.raises(ValueError, match=r"at most 4 tokens.*Received: 7 tokens in text 1, which"):
        refusing.predict(["a", long])
    answers, cut = refusing.file_answers(refusing).answer(
        Table({"text": ["a", long]}), GenerationOptions(max_new_tokens=3), batch_size=2
    )
    assert (len(answers), cut) == (2, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 33}, "`max_length` must be at most 32"),
        ({"max_length": 4, "prefix": "a b c"}, "more than the 4 tokens of the prefix"),
        ({"max_target_length": 40}, "`max_target_length` must be at most 32"),
        ({"long_sources": "cut"}, "`long_sources` must be"),
        ({"generation": {"penalty_alpha": 0.6}}, "generation: `penalty_alpha` changes texts"),
        ({"generation": {"beams": 4}}, "generation: every key must be.*Received: beams"),
        ({"beam_width": 0}, "`beam_width` must be"),
        (
            {"beam_width": 2, "generation": {"num_beams": 4, "num_return_sequences": 3}},
            "`num_return_sequences` must be at most `num_beams`.*num_beams=2",
        ),
        ({"generation": {"decoder_start_token_id": 99}}, "table of 16 rows. Received: 99"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        answerer(**settings)


def test_how_answers_are_decoded_unless_the_caller_says():
    file = {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "max_length": 9}
    task = answerer(generation=file)
    method = Beam(3, 2.0, normalisation="length", early_stopping=False)
    rules = Constraints(no_repeat_ngram_size=2)
    assert task.decoding_settings() == (method, 8, rules)
    said = {"method": method, "max_new_tokens": 8, "constraints": rules}
    assert task.predict(SOURCES) == answerer().predict(SOURCES, **said)
    wide = answerer(generation=file, beam_width=5)
    assert wide.decoding_settings()[0] == Beam(5, 2.0, normalisation="length", early_stopping=False)
    # A beam of a folder is transformers', and 1 is greedy also where the folder samples.
    beam = answerer(generation={"max_length": 9}, beam_width=2).decoding_settings()[0]
    assert beam == Beam(2, 1.0, normalisation="length", early_stopping=False)
    assert answerer(generation={}, beam_width=2).decoding_settings()[0] == beam
    assert answerer(generation={"do_sample": True}, beam_width=1).decoding_settings()[0] == Greedy()
    assert answerer(beam_width=2).decoding_settings() == (Beam(2), None, Constraints())
    assert answerer(generation=file, beam_width=1).decoding_settings()[0] == Greedy()
    assert task.decoding_settings(Greedy(), 4, Constraints()) == (Greedy(), 4, Constraints())
    assert answerer(generation={"max_length": 500}).decoding_settings()[1] == 31
    # A program without flags of decoding leaves it to the task.
    answer = task.file_answers(task).answer
    answers, _ = answer(Table({"text": SOURCES}), GenerationOptions(), batch_size=2)
    assert [a["output"] for a in answers] == task.predict(SOURCES)
    with pytest.raises(ValueError, match=r"`stop` is for language models.*Received: stop="):
        answer(Table({"text": ["a"]}), GenerationOptions(stop=(".",)), batch_size=2)


@pytest.mark.parametrize(
    "settings", [{}, {"beam_width": 3}, {"generation": {"num_beams": 3, "num_return_sequences": 2}}]
)
def test_a_run_of_steps_measures_the_task_s_own_answers_on_all_references(settings):
    task = answerer(**settings)
    sources = list(filter(None, SOURCES))
    answers = [x if isinstance(x, str) else x[0] for x in task.predict(sources)]
    held_out = sources, [["g h", answer] for answer in answers]
    pairs = ["a b", "d"], [["b", "c"], "e"]
    objective = task.make_objective(*pairs, validation_data=held_out, steps=1)
    assert objective.scores() == {"bleu": pytest.approx(100.0)}
    objective.dataset(objective.plan[0], "train")
    assert len(objective._encoded["train"].source.lengths) == 3
    translator = kbert.Translator(task.seq2seq, task.tokenizer)
    for pair in ("ab", ("a", "b", "c"), ("a", []), ("a", ["b", 3])):
        with pytest.raises(ValueError, match="A pair must be two strings"):
            translator.make_objective([("a b", ["b", "c"]), pair], steps=1)
    other = task.make_objective(*pairs, validation_data=held_out, steps=1, beam_width=8)
    assert other.options.search == Beam(8)


def test_a_beam_that_ends_without_a_text_scores_minus_infinity_alone_and_in_a_batch():
    task = answerer()
    rules = Constraints(no_repeat_ngram_size=1, min_new_tokens=31)  # 8 letters
    how = {"method": Beam(2), "constraints": rules, "max_new_tokens": 31, "return_scores": True}
    texts, scores = task.predict(["a b c"], **how)
    assert (texts, scores.tolist()) == ([""], [-np.inf])


@pytest.mark.parametrize(
    "method", [Greedy(), Sampling(temperature=0.7)], ids=["greedy", "sampling"]
)
def test_a_stream_is_the_text_in_pieces(method):
    task = answerer(generation={"no_repeat_ngram_size": 2, "max_length": 12})
    for text in SOURCES:
        pieces = list(task.stream(text, method=method, seed=3))
        assert all(pieces)
        assert ["".join(pieces)] == task.predict(text, method=method, seed=3)
    with pytest.raises(TypeError, match="must be one string"):
        task.stream(["a"])


@pytest.mark.slow
def test_it_learns_from_pairs():
    task = answerer(sigma=None)
    pairs = writing.reversed_pairs(400)
    history = task.fit(
        pairs[:360], validation_data=pairs[360:], epochs=20, batch_size=32, learning_rate=4e-3,
        verbose=0, metric="rougeL",
    ).history  # fmt: skip
    assert history["val_loss"][-1] < 0.7 * history["val_loss"][0]
    assert history["val_rougeL"][-1] > history["val_rougeL"][0]


def test_evaluations_are_of_generated_texts():
    task = answerer(sigma=None)
    pairs = writing.reversed_pairs(40)
    history = task.fit(
        pairs[:24], validation_data=pairs[24:], epochs=2, batch_size=8, learning_rate=4e-3,
        verbose=0, metric="rougeL",
    ).history  # fmt: skip
    scores = task.evaluate(pairs[24:])
    assert scores["rougeL"] == pytest.approx(max(history["val_rougeL"]))
    batch_losses = task.evaluate(pairs[24:], batch_size=7)
    assert batch_losses["loss"] == pytest.approx(scores["loss"], rel=1e-5)
    assert task.evaluate([x for x, _ in pairs[24:]], [y for _, y in pairs[24:]]) == scores


def test_weights_of_examples_and_rows_on_disk(tmp_path):
    pairs = writing.reversed_pairs(40)
    table = Table({"text": [x for x, _ in pairs], "target": [y for _, y in pairs]})
    weights = np.arange(40) % 2
    how = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "verbose": 0}
    task = answerer(sigma=None)
    other = answerer(sigma=None)
    changed = [y if w else "a a a a" for (_, y), w in zip(pairs, weights, strict=True)]
    table = Table({"text": table["text"], "target": changed})
    # A target with weight 0 counts for nothing, whatever it says; its length moves no batch here.
    again = other.fit(table, sample_weight=weights, by_length=False, **how).history["loss"]
    third = answerer(sigma=None)
    same = third.fit(
        Table({"text": table["text"], "target": [y for _, y in pairs]}),
        sample_weight=weights, by_length=False, **how,
    ).history["loss"]  # fmt: skip
    assert again == pytest.approx(same, rel=1e-5)
    rows = kbert.tasks.prepare_rows(task, table, tmp_path / "rows")
    assert answerer(sigma=None).fit(rows.folder, **how).history["loss"][-1] > 0


def test_steps_batches_of_tokens_and_a_corpus(tmp_path):
    pairs = writing.reversed_pairs(60)
    task = answerer(sigma=None, prefix="h ")
    how = {"steps": 4, "max_tokens": 128, "verbose": 0}
    history = task.fit(pairs, validation_data=pairs[:5], evaluate_every=4, **how).history
    assert np.isfinite(history["loss"]).all()
    columns = {"text": [x for x, _ in pairs], "target": [y for _, y in pairs]}
    again = answerer(sigma=None, prefix="h ")
    assert again.fit(columns, **how).history["loss"] == history["loss"]
    with pytest.raises(ValueError, match="'target' must be a string or a list of reference"):
        task.fit({"text": ["a"], "target": [3]}, steps=1)


def test_presets_keep_what_the_model_was_trained_with(tmp_path):
    generation = {"num_beams": 2, "max_length": 9, "decoder_start_token_id": 0}
    task = answerer(prefix="h ", long_sources="windows", generation=generation, label_smoothing=0.1)
    task.save_to_preset(tmp_path)
    record = json.loads((tmp_path / "kbert.json").read_text())["task"]
    assert record == {
        **{"kind": "text2text", "prefix": "h ", "long_sources": "windows"},
        **{"label_smoothing": 0.1, "generation": generation},
    }
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert again.predict(SOURCES) == task.predict(SOURCES)
    # A new task has the decoder's start token; what was said of the old task is left out.
    new = TextToText.from_preset(tmp_path, new_head=True)
    assert (new.framing.start_id, new.prefix) == (0, "")
    translator = kbert.Translator.from_preset(tmp_path, new_head=True)
    assert (translator.framing.start_id, translator.label_smoothing) == (0, 0.1)
    with pytest.raises(ValueError, match=r"of the class Translator. Received: a TextToText"):
        kbert.Translator.from_preset(tmp_path)


def test_an_export_answers_alike(tmp_path):
    task = answerer(prefix="h ", generation={"num_beams": 2, "max_length": 9}, max_length=6)
    path = task.export(tmp_path)
    served = tf.saved_model.load(path).signatures["serving_default"]
    sources = [*SOURCES, "  a b\n"]
    answers = served(text=tf.constant(sources))
    assert sorted(answers) == ["output", "scores"]
    texts, scores = task.predict(sources, return_scores=True)
    assert [x.decode() for x in answers["output"].numpy()[:, 0]] == texts
    np.testing.assert_allclose(answers["scores"].numpy()[:, 0], scores, atol=1e-5)
    assert served(text=tf.constant([], tf.string))["output"].shape == (0, 1)


@pytest.mark.parametrize("long_sources", ["truncate", "windows", "refuse"])
def test_an_export_is_checked_on_texts_of_any_length(long_sources):
    task = answerer(max_length=6, long_sources=long_sources)
    samples = task.row_export(task).samples(["a", "a b c d e f g h"])
    assert [shown(task, x["encoder_token_ids"][-1].numpy()) for x in samples] == [
        *("a [SEP]", "a b c d e [SEP]"),
    ]


def test_batches_of_tokens_have_the_prefix_and_the_limits_of_the_task():
    pairs = [("a b", "c"), ("d e f g", "h"), ("a", "b c d e f")]
    settings = {"prefix": "h ", "max_length": 6, "max_target_length": 5}
    tasks = [
        answerer(**settings),
        kbert.Translator(answerer().seq2seq, writing.tokenizer(), **settings),
    ]
    for task in tasks:
        by_steps = task.make_objective(pairs, steps=1, max_tokens=64)
        batches = [
            by_steps.dataset(by_steps.plan[0], "train"),
            pair_batches(task, pairs, None, max_tokens=64),
        ]
        for dataset in batches:
            batch = next(dataset.as_numpy_iterator())
            rows = batch["encoder_token_ids"][batch["weights"].any(1)]
            # The other two pairs are longer than 5 tokens.
            assert {shown(task, row).split(" [PAD]")[0] for row in rows} == {"h a b [SEP]"}
    encoded = encode_pairs(pairs, tasks[0].tokenizer, max_length=9)
    with pytest.raises(ValueError, match=r"cannot get the task's prefix.*Received: EncodedPairs"):
        pair_batches(tasks[0], encoded, None, max_tokens=64)


def test_of_several_results_the_best_is_scored():
    task = answerer(generation={"num_beams": 3, "num_return_sequences": 2, "max_length": 6})
    table = Table({"text": ["a b", "c"], "target": ["d", "e"]})
    answers = task.predict(table)
    assert [len(x) for x in answers] == [2, 2]
    assert task.score(table, answers) == task.score(table, [x[0] for x in answers])
    assert task.file_answers(task).written(answers) == [{"outputs": x} for x in answers]


def test_a_setting_that_changes_later_is_checked():
    task = answerer(max_length=7)
    for name, value in (
        ("max_length", 1000), ("max_target_length", 1000), ("prefix", "h g " * 9),
        ("generation", {"decoder_start_token_id": 1000}),
    ):  # fmt: skip
        before = getattr(task, name)
        with pytest.raises(ValueError, match="Received"):
            setattr(task, name, value)
        assert getattr(task, name) == before


def test_a_setting_that_changes_later_counts():
    task = answerer(max_length=7)
    task.prefix, task.generation = "h g ", {"num_beams": 2, "decoder_start_token_id": 0}
    task.long_sources = "windows"
    rows = task.pair_rows.sources(["a b c d e f", ""]).ids
    assert [shown(task, x) for x in rows] == ["h g a b c d [SEP]", "h g e f [SEP]", ""]
    assert (task.decoding_settings()[0].width, task.framing.start_id) == (2, 0)
