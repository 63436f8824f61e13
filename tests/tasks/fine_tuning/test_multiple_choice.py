"""Choosing between texts: against transformers, with any number of choices, to a SavedModel."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.data.tables.bucketing import BUCKET, bucketed_batches
from kbert.data.tables.table import Table
from kbert.models.weights import named_weights
from kbert.tasks import MultipleChoice
from tests.export import session
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import gradients, make_reference
from tests.tasks import toy
from tests.tasks.pretraining.test_export import TEXT_OPERATIONS, operations

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

TABLE = {
    "context": ["the quick fox", "a dog jumps over the moon", "red", "the king"],
    "choices": [
        ["jumps, at night", "pen"],
        ["it is day", "the big house by the river and the tree", "queen"],
        ["pen", "", "fox", "the old man", "sun"],
        ["was old", "was new"],
    ],
    "label": [1, 0, 4, 0],
}

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(scope="module")
def task(config, tokenizer):
    keras.utils.set_random_seed(1)
    return MultipleChoice(kbert.Encoder(config), tokenizer)


def row(number, table=TABLE):
    return {name: [column[number]] for name, column in table.items()}


def toy_data(count, seed=0):
    """The context's colour tells which thing is right (`toy.RULES`); two to four things."""
    rng = np.random.default_rng(seed)
    table = {"context": [], "choices": [], "label": []}
    for _ in range(count):
        colours = rng.choice(list(toy.RULES), rng.integers(2, 5), replace=False)
        right = rng.integers(len(colours))
        table["context"].append(f"the {colours[right]}" + " one" * rng.integers(12))
        table["choices"].append([toy.RULES[colour] for colour in colours])
        table["label"].append(int(right))
    return table


@pytest.fixture(scope="module")
def theirs(tokenizer, tmp_path_factory):
    """A model of transformers, and its folder."""
    model = make_reference(
        *("bert", "ForMultipleChoice"),
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id,
    )
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model, folder


def encoded(tokenizer, context, choices):
    """(1, A, T) tensors under transformers' names, by hand."""
    rows = []
    for choice in choices:
        first, second = (tokenizer.encode(x).numpy().tolist() for x in (context, choice))
        first = [tokenizer.cls_id, *first, tokenizer.sep_id]
        second = [*second, tokenizer.sep_id]
        rows.append((first + second, [0] * len(first) + [1] * len(second)))
    width = max(len(ids) for ids, _ in rows)
    pad = [[0] * (width - len(ids)) for ids, _ in rows]
    ids = [[*ids, *[tokenizer.pad_id] * len(p)] for (ids, _), p in zip(rows, pad, strict=True)]
    segments = [s + p for (_, s), p in zip(rows, pad, strict=True)]
    mask = [[1] * len(s) + p for (_, s), p in zip(rows, pad, strict=True)]
    names = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    return {name: torch.tensor([value]) for name, value in names.items()}


def test_loss_gradients_and_answers_are_those_of_transformers(theirs, tokenizer):
    """One batch of rows with two, three and five choices here, a row at a time there."""
    model, folder = theirs
    task = MultipleChoice.from_preset(folder, max_length=24)
    rows = task.tokenize(Table(TABLE), labelled=True)
    batch = task.assemble(rows.gather(np.arange(4))) | {"label_weights": tf.ones(4)}

    loss = 0.0
    for number, answer in enumerate(task.predict(TABLE)):
        context, choices, label = (TABLE[name][number] for name in TABLE)
        out = model(**encoded(tokenizer, context, choices), labels=torch.tensor([label]))
        loss = loss + out.loss / 4
        probabilities = out.logits[0].detach().softmax(-1).numpy()
        assert_close(answer["probabilities"], probabilities, 1e-4, f"row {number}")
        best = int(probabilities.argmax())
        assert (answer["choice"], answer["text"]) == (best, choices[best])
    loss.backward()

    def our_loss():
        ((total, count),) = task.loss_terms(batch, training=False)[0].values()
        return total / count

    assert float(our_loss()) == pytest.approx(loss.item(), rel=1e-4)
    weights = named_weights(task.encoder, "encoder") | named_weights(task.choice, "choice")
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    wanted = import_model(model.config.to_dict(), wanted, "the reference").arrays
    found = gradients(our_loss, weights)
    # A softmax does not feel what all its logits have in common.
    for values in (found, wanted):
        assert_close(values.pop("choice/dense/bias"), [0.0], 1e-6)
    assert_gradients_close(found, wanted)


def test_absent_alternatives_have_no_say(task):
    """Rows with two to five choices in one batch answer as each does alone."""
    together = task.predict(TABLE)
    for number, answer in enumerate(together):
        (alone,) = task.predict(row(number))
        assert (alone["choice"], alone["text"]) == (answer["choice"], answer["text"])
        assert_close(answer["probabilities"], alone["probabilities"], 1e-5)
        assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
    measured = task.evaluate(TABLE)
    losses = [
        -np.log(answer["probabilities"][label])
        for answer, label in zip(together, TABLE["label"], strict=True)
    ]
    assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    right = [a["choice"] == label for a, label in zip(together, TABLE["label"], strict=True)]
    assert measured["accuracy"] == np.mean(right)


def test_batches_hold_alternatives_of_like_length(task):
    data = toy_data(40)
    rows = task.tokenize(Table(data), labelled=True)
    real = [len(choices) for choices in data["choices"]]
    seen = []
    for batch in bucketed_batches(rows, task.assemble, batch_size=8, epochs=1):
        mask = batch["padding_mask"].numpy()  # (B, A, T)
        assert mask.shape[2] == -(-mask.sum(-1).max() // BUCKET) * BUCKET
        for place, number in enumerate(batch["rows"].numpy()):
            own = mask[place].any(-1)
            assert own.tolist() == [i < real[number] for i in range(mask.shape[1])]
            assert mask[place].sum(-1).max() * real[number] == rows.lengths[number]
            ids = batch["token_ids"].numpy()[place]
            assert (ids[~own] == task.tokenizer.pad_id).all()
        seen += batch["rows"].numpy().tolist()
    assert sorted(seen) == list(range(40))


def test_what_is_too_long_is_cut_and_counted(config, tokenizer, caplog):
    task = MultipleChoice(kbert.Encoder(config), tokenizer, max_length=12)
    rows = task.tokenize(Table(TABLE), labelled=False)
    assert rows.cut == 1
    assert rows.lengths[1] == 3 * 12
    features = task.assemble(rows.gather(np.array([1])))
    context = tokenizer.encode(TABLE["context"][1]).numpy()
    choice = tokenizer.encode(TABLE["choices"][1][1]).numpy()
    wanted = [tokenizer.cls_id, *context[:5], tokenizer.sep_id, *choice[:4], tokenizer.sep_id]
    assert features["token_ids"][0, 1].numpy().tolist() == wanted
    task.predict(TABLE)
    assert "1 of 4 examples" in caplog.text


@pytest.mark.slow
def test_it_learns_a_rule(config, tokenizer):
    keras.utils.set_random_seed(1)
    deep = config.replace(num_layers=2, **NO_DROPOUT)
    task = MultipleChoice(kbert.Encoder(deep), tokenizer)
    task.fit(toy_data(600), epochs=10, learning_rate=5e-3, verbose=0)
    assert task.evaluate(toy_data(200, seed=1))["accuracy"] > 0.95


def test_a_new_head_fits_any_encoder(task, config, tokenizer, tmp_path):
    encoder = kbert.Encoder(config.replace(pooler_activation=None))
    encoder.save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    new = MultipleChoice.from_preset(tmp_path, new_head=True, max_length=20)
    assert new.row_length == 20
    assert len(new.predict(TABLE)) == 4


def test_presets_keep_it(task, tmp_path):
    task.save_to_preset(tmp_path / "ours")
    again = kbert.tasks.Task.from_preset(tmp_path / "ours")
    assert isinstance(again, MultipleChoice)
    assert again.predict(TABLE) == task.predict(TABLE)
    assert again.settings == task.settings
    task.save_to_preset(tmp_path / "theirs", format="huggingface")
    model = transformers.BertForMultipleChoice.from_pretrained(tmp_path / "theirs").eval()
    for number, answer in enumerate(task.predict(TABLE)):
        context, choices, _ = (TABLE[name][number] for name in TABLE)
        logits = model(**encoded(task.tokenizer, context, choices)).logits.detach()
        assert_close(answer["probabilities"], logits[0].softmax(-1).numpy(), 1e-4)


@pytest.mark.slow
def test_two_replicas_train_as_one(config, tokenizer, mirrored):
    """Rows of two to four choices, and a last batch that is not full."""

    def trained(scope):
        keras.utils.set_random_seed(1)
        with scope:
            task = MultipleChoice(kbert.Encoder(config.replace(**NO_DROPOUT)), tokenizer)
        history = task.fit(toy_data(20), epochs=2, batch_size=8, learning_rate=1e-3, verbose=0)
        return history.history["loss"], task.get_weights()

    one, two = trained(contextlib.nullcontext()), trained(mirrored.scope())
    np.testing.assert_allclose(two[0], one[0], rtol=1e-4)
    for found, wanted in zip(two[1], one[1], strict=True):
        assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": [["one"]], "label": [0]}, r"row 0 .*must have at least two choices.*\['one"),
        ({"label": [2]}, "row 0 .*: the label must be the index.*from 0 to 1. Received: 2"),
        ({"label": ["pen"]}, "index of the right choice.*Received: 'pen'"),
        ({"label": [-1]}, "index of the right choice.*Received: -1"),
    ],
)
def test_bad_data_names_its_row(task, changes, message):
    with pytest.raises(ValueError, match=message):
        task.evaluate({**row(0), **changes})


def test_an_encoder_without_a_pooler_is_refused(config, tokenizer):
    encoder = kbert.Encoder(config.replace(pooler_activation=None))
    with pytest.raises(ValueError, match=r"must have a pooler: .*new_head=True.*activation=None"):
        MultipleChoice(encoder, tokenizer)


@pytest.fixture(scope="module")
def exported(task, tmp_path_factory):
    return task.export(tmp_path_factory.mktemp("export"))


def rectangle(choices):
    width = max(map(len, choices))
    return [[*texts, *[""] * (width - len(texts))] for texts in choices]


def test_the_session_loader_gives_the_same_answers(task, exported):
    table = {name: [x for i, x in enumerate(column) if i != 2] for name, column in TABLE.items()}
    inputs = {"context": table["context"], "choices": rectangle(table["choices"])}
    nothing = {"context": ["red", "the king"], "choices": [["", ""], ["", "queen"]]}
    (answer, served, shared) = session.ask(
        exported,
        ("serving_default", inputs),
        ("choose", nothing),
        ("choose", {"context": ["red"], "choices": [["pen", "fox"], ["sun", "moon"]]}),
    )
    for number, wanted in enumerate(task.predict(table)):
        count = len(wanted["probabilities"])
        assert_close(answer["probabilities"][number, :count], wanted["probabilities"], 1e-5)
        assert not answer["probabilities"][number, count:].any()
        assert answer["text"][number].decode() == wanted["text"]
        assert answer["choice"][number] == wanted["choice"]
    assert served["choice"].tolist() == [-1, 1]
    assert served["text"].tolist() == [b"", b"queen"]
    assert served["probabilities"].tolist() == [[0, 0], [0, 1]]
    assert shared["probabilities"].shape == (2, 2)


def test_bad_input_has_a_defined_answer(exported):
    choose = tf.saved_model.load(exported).signatures["choose"]

    def ask(context, choices):
        answer = choose(context=tf.constant(context), choices=tf.constant(choices))
        return {name: x.numpy() for name, x in answer.items()}

    long = ask(["fox " * 250_000], [["dog " * 250_000, "pen"]])  # a megabyte each
    assert long["probabilities"].sum() == pytest.approx(1, abs=1e-5)
    broken = ask([b"\xff\xfe"], [[b"\xc3", "pen"]])
    assert broken["probabilities"].sum() == pytest.approx(1, abs=1e-5)
    assert ask([""], [["", "pen"]])["choice"].tolist() == [1]
    empty = choose(context=tf.constant([""]), choices=tf.zeros([1, 0], tf.string))
    assert empty["choice"].numpy().tolist() == [-1]
    assert empty["probabilities"].shape == (1, 0)
    none = choose(context=tf.zeros([0], tf.string), choices=tf.zeros([0, 3], tf.string))
    assert none["probabilities"].shape == (0, 3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"one text for each row.*\] \[2\] \[3\]"
    ):
        ask(["one", "two"], [["a", "b"], ["c", "d"], ["e", "f"]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a string tensor"):
        ask([1.5], [["a", "b"]])


def test_no_operation_that_tensorflow_serving_may_lack(exported):
    from tensorflow.python.framework import op_def_registry

    text = {name for name in operations(exported) if name.startswith("TFText>")} | {
        name for name in operations(exported) if op_def_registry.get(name) is None
    }
    assert text <= TEXT_OPERATIONS
    assert not {"PyFunc", "EagerPyFunc"} & operations(exported)


def test_bfloat16_answers_in_float32(config, tokenizer):
    task = MultipleChoice(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer)
    rows = task.tokenize(Table(TABLE), labelled=False)
    features = task.assemble(rows.gather(np.arange(4)))
    logits = task(features)["choice"]
    assert logits.dtype == tf.float32
    found = task.outputs({"choice": logits}, features)["probabilities"]
    assert ops.all(ops.isfinite(found))
    assert found.dtype == tf.float32
