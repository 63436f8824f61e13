"""Tasks on a decoder, in GPT's input forms: what is read, what is learned, folders, exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.tables.table import Table
from kbert.models import DecoderEncoder
from kbert.tasks import MultipleChoice, QuestionAnswerer, TextClassifier, TextRegressor
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import assert_close
from tests.tasks import toy
from tests.tasks.pretraining.test_export import serve

pytestmark = pytest.mark.tensorflow

LABELS = ["no", "yes"]
FIT = {"epochs": 4, "batch_size": 8, "learning_rate": 5e-3, "verbose": 0}
COLOURS, THINGS = list(toy.RULES), list(toy.RULES.values())
PAIRS = [("the red pen", "a fox"), ("red", "blue fox and the dog"), ("", "a"), ("one", "one")]
START, DELIMITER, EXTRACT = "[start]", "[delimiter]", "[extract]"


def make_decoder(tokenizer, **changes):
    keras.utils.set_random_seed(1)
    sizes = {
        "vocabulary_size": tokenizer.vocabulary_size,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 64,
        "max_positions": 40,
        "initializer_range": 0.15,  # answers that differ visibly
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return kbert.Decoder(kbert.DecoderConfig(**{**sizes, **changes}))


@pytest.fixture
def encoder(tokenizer):
    return DecoderEncoder.extend(make_decoder(tokenizer))


def read(task, table):
    """The rows that a table becomes, as tokens, feature by feature."""
    rows = task.tokenize(Table(table), labelled=False)
    batch = task.assemble(rows.gather(np.arange(len(rows))))
    mask = batch["padding_mask"].numpy()
    return {
        name: [
            " ".join(task.form.token_name(i, task.tokenizer) for i in ids[real > 0].tolist())
            for ids, real in zip(
                batch[name].numpy().reshape(-1, mask.shape[-1]),
                mask.reshape(-1, mask.shape[-1]),
                strict=True,
            )
        ]
        for name in batch
        if name.endswith("token_ids")
    }


def test_a_text_and_a_pair_token_by_token(encoder, tokenizer):
    task = TextClassifier(encoder, tokenizer, LABELS)
    assert read(task, {"text": ["the red pen", ""]}) == {
        "token_ids": [f"{START} the red pen {EXTRACT}", f"{START} {EXTRACT}"]
    }
    assert read(task, {"first": ["the pen"], "second": ["a fox"]}) == {
        "token_ids": [f"{START} the pen {DELIMITER} a fox {EXTRACT}"]
    }


def test_what_is_alike_is_read_in_both_orders(encoder, tokenizer):
    for task in (
        TextRegressor(encoder, tokenizer),
        TextClassifier(encoder, tokenizer, LABELS, both_orders=True),
    ):
        assert read(task, {"first": ["the pen"], "second": ["a fox"]}) == {
            "token_ids": [f"{START} the pen {DELIMITER} a fox {EXTRACT}"],
            "swapped_token_ids": [f"{START} a fox {DELIMITER} the pen {EXTRACT}"],
        }
        assert list(read(task, {"text": ["a"]})) == ["token_ids"]


def test_choices_token_by_token(encoder, tokenizer):
    task = MultipleChoice(encoder, tokenizer)
    table = {"context": ["the red", "one"], "choices": [["pen", "fox", "dog"], ["two", "three"]]}
    forms = [f"{START} the red {DELIMITER} {word} {EXTRACT}" for word in ("pen", "fox", "dog")]
    forms += [f"{START} one {DELIMITER} {word} {EXTRACT}" for word in ("two", "three")]
    assert read(task, table) == {"token_ids": [*forms, ""]}


def test_long_texts_keep_their_last_token(encoder, tokenizer):
    task = TextClassifier(encoder, tokenizer, LABELS, max_length=6)
    assert read(task, {"text": ["one two three four five big"]}) == {
        "token_ids": [f"{START} one two three four {EXTRACT}"]
    }
    windows = TextClassifier(encoder, tokenizer, LABELS, max_length=6, doc_stride=3)
    assert read(windows, {"text": ["one two three four five big"]}) == {
        "token_ids": [
            f"{START} one two three four {EXTRACT}",
            f"{START} four five big {EXTRACT}",
        ]
    }


@pytest.mark.parametrize("options", [{"max_length": 10}, {"max_length": 10, "doc_stride": 2}])
def test_both_orders_give_one_score(encoder, tokenizer, options):
    task = TextRegressor(encoder, tokenizer, **options)
    pairs = [
        *PAIRS,
        ("one two three four five big", "red pen blue fox green dog big"),
        ("a " * 9,) * 2,
    ]
    there = task.predict(pairs)
    back = task.predict([pair[::-1] for pair in pairs])
    assert_close(there, back, 1e-5)
    one_way = TextRegressor(encoder, tokenizer, both_orders=False, **options)
    one_way.classifier.dense.kernel.assign(task.classifier.dense.kernel)
    there = one_way.predict(pairs[:2])
    assert np.abs(there - one_way.predict([pair[::-1] for pair in pairs[:2]])).min() > 1e-3


def test_the_vectors_of_both_orders_are_added(encoder, tokenizer):
    both = TextRegressor(encoder, tokenizer)
    one = TextRegressor(encoder, tokenizer, both_orders=False)
    one.classifier.dense.kernel.assign(both.classifier.dense.kernel)
    both.classifier.dense.bias.assign([0.25])
    there, back = one.predict(PAIRS), one.predict([pair[::-1] for pair in PAIRS])
    assert_close(both.predict(PAIRS), there + back + 0.25, 1e-5)


def test_answers_do_not_depend_on_their_company(encoder, tokenizer):
    task = TextClassifier(encoder, tokenizer, LABELS)
    asked = ["the red pen", "", "a " * 30, "they is the blue fox and no more"]
    for text, answer in zip(asked, task.predict(asked), strict=True):
        (alone,) = task.predict([text])
        assert alone["probability"] == pytest.approx(answer["probability"], abs=1e-5)


def texts(count, seed=0):
    """A text that holds a colour is a yes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    rows = [
        " ".join(rng.permutation([str(rng.choice(COLOURS if label else THINGS)), "the", "one"]))
        for label in labels
    ]
    return rows, [LABELS[label] for label in labels]


def choices(count, seed=0):
    """The context's colour tells which thing is right."""
    rng = np.random.default_rng(seed)
    table = {"context": [], "choices": [], "label": []}
    for _ in range(count):
        colours = rng.choice(COLOURS[:3], rng.integers(2, 4), replace=False)
        right = int(rng.integers(len(colours)))
        table["context"].append(f"the {colours[right]}")
        table["choices"].append([toy.RULES[colour] for colour in colours])
        table["label"].append(right)
    return table


@pytest.mark.slow
def test_a_classifier_learns_and_its_language_model_with_it(encoder, tokenizer):
    task = TextClassifier(encoder, tokenizer, LABELS)
    before = task.encoder.decoder.token_embedding.numpy()
    history = task.fit(*texts(200), validation_data=texts(60, seed=2), **FIT).history
    assert task.evaluate(*texts(100, seed=1))["accuracy"] > 0.95
    assert history["lm_loss"][-1] < 0.6 * history["lm_loss"][0]
    for step in range(FIT["epochs"]):
        parts = history["cross_entropy"][step] + 0.5 * history["lm_loss"][step]
        assert history["loss"][step] == pytest.approx(parts, rel=1e-5)
    assert history["val_loss"][-1] < 0.3  # of the task alone
    moved = np.abs(task.encoder.decoder.token_embedding.numpy() - before).max(axis=1)
    assert (moved[-3:] > 0).all()  # the new tokens are learned


@pytest.mark.slow
def test_choices_are_learned(encoder, tokenizer):
    task = MultipleChoice(encoder, tokenizer)
    task.fit(choices(200), **{**FIT, "epochs": 8})
    assert task.evaluate(choices(60, seed=1))["accuracy"] > 0.9


def labelled_batch(task, table):
    rows = task.tokenize(Table(table), labelled=True)
    batch = task.assemble(rows.gather(np.arange(len(rows))))
    return {**batch, "label_weights": tf.ones(len(rows))}


def test_without_a_weight_there_is_no_language_model_s_loss(encoder, tokenizer):
    for weight, wanted in ((0, {"squared_error"}), (0.5, {"squared_error", "auxiliary"})):
        task = TextRegressor(encoder, tokenizer, auxiliary_lm_weight=weight)
        batch = labelled_batch(task, {"text": ["red fox"], "label": [1.0]})
        losses, metrics = task.loss_terms(batch, training=True)
        assert set(losses) == wanted
        assert ("lm_loss" in metrics) == (weight > 0)


def test_it_reads_every_order_window_and_choice(encoder, tokenizer):
    """Tokens that are predicted: all but the first of each row."""
    pair = {"first": ["red fox"], "second": ["the pen is big"], "label": [1.0]}  # 9 tokens
    choices = {"context": ["red"], "choices": [["pen", "a fox"]], "label": [0]}  # 5 and 6
    for task, table, count in (
        (TextRegressor(encoder, tokenizer, both_orders=False), pair, 8),
        (TextRegressor(encoder, tokenizer), pair, 16),
        # Windows of 4 tokens: "red fox" with "the pen" and with "is big".
        (TextRegressor(encoder, tokenizer, max_length=7, doc_stride=2), pair, 24),
        (MultipleChoice(encoder, tokenizer), choices, 9),
    ):
        _, metrics = task.loss_terms(labelled_batch(task, table), training=False)
        assert float(metrics["lm_loss"][1]) == count


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
def test_micro_batches_and_copies_change_nothing(tokenizer):
    """Losses of the global batch, whatever it is cut into; the last batch is filled up."""
    found = []
    for micro_batches in (1, 4):
        encoder = DecoderEncoder.extend(make_decoder(tokenizer))
        task = TextRegressor(encoder, tokenizer, max_length=8, doc_stride=2)
        pairs = {"first": texts(10)[0], "second": texts(10, seed=3)[0], "label": [0.5] * 10}
        options = {**FIT, "epochs": 1, "micro_batches": micro_batches}
        found.append(task.fit(pairs, **options).history)
    for name in ("squared_error", "auxiliary", "lm_loss", "gradient_norm"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3), name


def gpt2_tokenizer():
    """As GPT-2's: no token but the end of text, and none for the roles of BERT's."""
    return kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])


@pytest.mark.parametrize(
    ("block", "format"),
    [
        ("pre_norm", "huggingface"),
        ("post_norm", "kbert"),
        pytest.param("pre_norm", "kbert", marks=pytest.mark.slow),
        pytest.param("post_norm", "huggingface", marks=pytest.mark.slow),
    ],
)
def test_a_new_head_on_a_folder_of_a_decoder(format, block, tmp_path):
    tokenizer = gpt2_tokenizer()
    decoder = make_decoder(tokenizer, block=block, intermediate_size=128)
    decoder.save_to_preset(tmp_path, format)
    tokenizer.save(tmp_path)
    task = TextClassifier.from_preset(tmp_path, new_head=True, labels=LABELS)
    assert task.encoder.start_id == tokenizer.vocabulary_size == 257
    np.testing.assert_array_equal(
        task.encoder.decoder.token_embedding.numpy()[:257], decoder.token_embedding.numpy()
    )
    assert task.predict(["ça 💡", ""])[0]["label"] in LABELS


@pytest.mark.parametrize(
    "kind",
    [
        TextClassifier,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (TextRegressor, MultipleChoice)),
    ],
)
def test_a_task_comes_back_from_its_folder(kind, tmp_path):
    tokenizer = gpt2_tokenizer()
    labels = [LABELS] if kind is TextClassifier else []
    encoder = DecoderEncoder.extend(make_decoder(tokenizer))
    task = kind(encoder, tokenizer, *labels, max_length=24, auxiliary_lm_weight=0.25)
    asked = PAIRS
    if kind is MultipleChoice:
        asked = [{"context": "the red", "choices": ["pen", "a fox"]}]
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert type(again) is kind
    assert again.settings == task.settings
    assert again.auxiliary_lm_weight == 0.25
    for found, wanted in zip(again.predict(asked), task.predict(asked), strict=True):
        assert found == wanted
    # Another head takes the tokens that are there, and adds no more.
    other = TextClassifier.from_preset(tmp_path, new_head=True, labels=["a", "b", "c"])
    assert other.encoder.start_id == encoder.start_id
    np.testing.assert_array_equal(
        other.encoder.decoder.token_embedding.numpy(), encoder.decoder.token_embedding.numpy()
    )
    assert kbert.Decoder.from_preset(tmp_path).config == encoder.decoder.config
    with pytest.raises(ValueError, match=r"format must be .kbert. .*Received: 'huggingface'"):
        task.save_to_preset(tmp_path / "theirs", "huggingface")


@pytest.mark.slow
def test_exports_answer_as_the_task_does(tokenizer, encoder, tmp_path):
    task = TextClassifier(encoder, tokenizer, LABELS, both_orders=True, max_length=12)
    entries = tf.saved_model.load(task.export(tmp_path)).signatures
    first, second = map(list, zip(*PAIRS, ("a " * 40, "the red pen " * 3), strict=True))
    pairs = list(zip(first, second, strict=True))
    found = entries["classify_pairs"](first=tf.constant(first), second=tf.constant(second))
    wanted = [[*answer["probabilities"].values()] for answer in task.predict(pairs)]
    assert_close(found["scores"], wanted, 1e-5)
    found = entries["classify"](text=tf.constant(first))
    wanted = [[*answer["probabilities"].values()] for answer in task.predict(first)]
    assert_close(found["scores"], wanted, 1e-5)
    task = MultipleChoice(encoder, tokenizer)
    entries = tf.saved_model.load(task.export(tmp_path / "choice")).signatures
    asked = [["pen", "a fox", ""], ["dog", "the man", "one two three"]]
    found = entries["choose"](context=tf.constant(["red", "the"]), choices=tf.constant(asked))
    table = {"context": ["red", "the"], "choices": [asked[0][:2], asked[1]]}
    for row, wanted in enumerate(task.predict(table)):
        count = len(wanted["probabilities"])
        assert_close(found["probabilities"][row, :count], wanted["probabilities"], 1e-5)


@pytest.mark.slow
def test_a_fresh_process_answers(tmp_path):
    tokenizer = gpt2_tokenizer()
    task = TextRegressor(DecoderEncoder.extend(make_decoder(tokenizer)), tokenizer)
    first, second = map(list, zip(*PAIRS, strict=True))
    (found,) = serve(task.export(tmp_path), ("score_pairs", {"first": first, "second": second}))
    assert_close(found["score"], task.predict(PAIRS), 1e-5)


def test_what_does_not_fit_is_told(encoder, tokenizer, config):
    for make in (
        lambda: QuestionAnswerer(encoder, tokenizer),
        lambda: kbert.tasks.TokenClassifier(encoder, tokenizer, LABELS),
        lambda: kbert.tasks.Pretraining(encoder, tokenizer),
    ):
        with pytest.raises(ValueError, match=r"Decoders are supported by .*TextClassifier"):
            make()
    with pytest.raises(ValueError, match=r"DecoderEncoder.extend adds. .*entries in the tokenizer"):
        TextClassifier(DecoderEncoder(encoder.decoder), gpt2_tokenizer(), LABELS)
    with pytest.raises(ValueError, match=r"both_orders=True is for decoders.*a Encoder"):
        TextClassifier(kbert.Encoder(config), tokenizer, LABELS, both_orders=True)
    with pytest.raises(ValueError, match=r"auxiliary_lm_weight=1.0 on a Encoder"):
        MultipleChoice(kbert.Encoder(config), tokenizer, auxiliary_lm_weight=1.0)
    with pytest.raises(ValueError, match=r"extend\(decoder\). Received: a Decoder"):
        TextClassifier(make_decoder(tokenizer), tokenizer, LABELS)
