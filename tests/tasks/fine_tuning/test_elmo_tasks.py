"""Tasks on ELMo's features: a frozen biLM, a mix and a head that are trained."""

import keras
import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.tasks import MultipleChoice, QuestionAnswerer, TextClassifier, TokenClassifier
from tests.harness import assert_close, randomise
from tests.tasks import toy
from tests.tasks.pretraining.test_export import serve

pytestmark = pytest.mark.tensorflow

CONFIG = kbert.ElmoConfig(
    character_size=4,
    filters=((1, 16), (2, 32)),
    num_highway=1,
    max_characters=12,
    lstm_size=48,
    projection_size=32,
    num_layers=2,
)
TAGS = ["O", "B-thing", "I-thing"]
COLOURS, THINGS, OTHERS = list(toy.RULES)[:3], list(toy.RULES.values())[:3], ["the", "a", "is"]
LONG_WORD = "x" * 10_000
FIT = {"epochs": 6, "batch_size": 8, "learning_rate": 0.1, "verbose": 0}


def make_elmo(**changes):
    """A biLM of random weights, whose layers tell words and their neighbours."""
    elmo = kbert.Elmo(CONFIG.replace(**changes))
    randomise(elmo, 0.2)
    return elmo


def make_tokenizer():
    return kbert.CharacterTokenizer(CONFIG.max_characters)


def make_encoder():
    keras.utils.set_random_seed(1)
    encoder = kbert.models.ElmoEncoder(make_elmo())
    encoder.mix.gamma.assign(5.0)  # features near 1, from which a head learns in few steps
    return encoder


def classifier(**options):
    return TextClassifier(make_encoder(), make_tokenizer(), ["no", "yes"], **options)


def tagger(**options):
    return TokenClassifier(make_encoder(), make_tokenizer(), TAGS, **options)


def texts(count, seed=0):
    """A text of colours is a yes, one of other words a no."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    rows = []
    for label in labels:
        words = rng.choice(COLOURS if label else OTHERS, rng.integers(1, 5))
        rows.append(" ".join(words))
    return rows, labels.tolist()


def sentences(count, seed=0):
    """A colour and a thing behind it are an entity, other words are none."""
    rng = np.random.default_rng(seed)
    table = {"words": [], "labels": []}
    for _ in range(count):
        words, labels = [], []
        for _ in range(rng.integers(1, 5)):
            if rng.integers(2):
                words += [str(rng.choice(COLOURS)), str(rng.choice(THINGS))]
                labels += ["B-thing", "I-thing"]
            else:
                words.append(str(rng.choice(OTHERS)))
                labels.append("O")
        table["words"].append(words)
        table["labels"].append(labels)
    return table


def values(task):
    return {weight.path: np.array(weight) for weight in task.weights}


def changed(before, task):
    return {path for path, x in values(task).items() if not np.array_equal(x, before[path])}


@pytest.mark.slow
@pytest.mark.graphs
def test_a_classifier_learns_a_rule_by_its_mix_and_its_head_alone():
    task = classifier(dropout=0.0)
    before = values(task)
    task.fit(*texts(160), **FIT)
    assert task.evaluate(*texts(100, seed=1))["accuracy"] > 0.95
    assert changed(before, task) == {
        *("encoder/mix/weights", "encoder/mix/gamma"),
        *("classifier/dense/kernel", "classifier/dense/bias"),
    }
    slots = " ".join(variable.path for variable in task.optimizer.variables)
    assert "mix" in slots
    assert "lstm" not in slots
    assert "cnn" not in slots


@pytest.mark.slow
def test_a_tagger_learns_a_rule_by_its_mix_and_its_head_alone():
    task = tagger(dropout=0.0)
    before = values(task)
    task.fit(sentences(160), **FIT)
    scores = task.evaluate(sentences(100, seed=1))
    assert scores["f1"] > 0.95
    moved = {path.split("/")[0] for path in changed(before, task)}
    assert moved == {"encoder", "tokens"}


def test_a_bilm_that_is_thawed_is_trained_too():
    task = classifier()
    task.encoder.elmo.trainable = True
    before = values(task)
    task.fit(*texts(8), **{**FIT, "epochs": 1, "learning_rate": 1e-3})
    assert any(path.startswith("elmo/lstm") for path in changed(before, task))
    assert any(path.startswith("elmo/character_cnn") for path in changed(before, task))


@pytest.mark.parametrize("make", [classifier, tagger], ids=["texts", "words"])
def test_a_task_comes_back_from_its_folder(make, tmp_path):
    task = make(max_length=40, dropout=0.5)
    randomise(task.encoder.mix)
    asked = ["the red pen", "", LONG_WORD, "a " * 60]
    task.save_to_preset(tmp_path)
    again = type(task).from_preset(tmp_path)
    assert again.settings == task.settings
    assert again.predict(asked) == task.predict(asked)
    names = {name.split("/")[0] for name in read_checkpoint(tmp_path).arrays}
    assert names == {"elmo", "mix", *set(task.parts) - {"elmo", "mix"}}
    assert [w.path for w in again.trainable_weights] == [w.path for w in task.trainable_weights]


@pytest.mark.parametrize("format", ["kbert", "bilm"])
def test_a_new_head_on_a_folder_of_an_elmo(format, tmp_path):
    elmo = make_elmo(vocabulary_size=9)
    elmo.save_to_preset(tmp_path, format)
    task = TokenClassifier.from_preset(tmp_path, new_head=True, labels=TAGS, dropout=0.5)
    assert "softmax" not in " ".join(values(task))
    wanted = {weight.path: np.array(weight) for weight in elmo.weights}
    for weight in task.encoder.elmo.weights:
        np.testing.assert_array_equal(weight, wanted[weight.path])
    assert task.tokenizer.max_characters == CONFIG.max_characters
    assert task.head_dropout.rate == 0.5
    assert len(task.predict(["the red pen"])[0]["labels"]) == 3


def test_the_bilm_of_a_task_s_folder(tmp_path):
    task = classifier()
    task.save_to_preset(tmp_path)
    elmo = kbert.Elmo.from_preset(tmp_path)
    for weight, wanted in zip(elmo.weights, task.encoder.elmo.weights, strict=True):
        np.testing.assert_array_equal(weight, wanted)


def test_answers_do_not_depend_on_their_company():
    for task in (classifier(), tagger()):
        asked = ["the red pen", "", "a", "they is the blue fox and no more", LONG_WORD]
        together = task.predict(asked)
        for text, answer in zip(asked, together, strict=True):
            (alone,) = task.predict([text])
            if "probability" in answer:
                assert alone["probability"] == pytest.approx(answer["probability"], abs=1e-5)
            else:
                assert alone["words"] == answer["words"] == text.split()
                assert_close(alone["probabilities"], answer["probabilities"], 1e-5)


def test_of_a_word_the_first_characters_are_read():
    task = tagger()
    (long,), (short,) = task.predict([LONG_WORD]), task.predict(["x" * CONFIG.max_characters])
    assert long["probabilities"] == short["probabilities"]


def test_long_texts_are_read_in_windows():
    task = tagger(max_length=10)
    sentence = ["the", "red", "pen", "is", "a", "fox"] * 5
    (answer,) = task.predict([sentence])
    assert len(answer["labels"]) == 30
    pooled = classifier(max_length=10, doc_stride=4, pooling="max").predict([" ".join(sentence)])
    assert set(pooled[0]["probabilities"]) == {"no", "yes"}


def test_choices(tmp_path):
    rows = [
        {"context": "the red", "choices": ["pen", "fox is", "a"], "label": 1},
        {"context": "", "choices": ["the", "pen"], "label": 0},
    ]
    task = MultipleChoice(make_encoder(), make_tokenizer())
    before = values(task)
    task.fit(rows * 2, **{**FIT, "epochs": 1})
    assert changed(before, task) == {
        *("encoder/mix/weights", "encoder/mix/gamma"),
        *("choice/dense/kernel", "choice/dense/bias"),
    }
    answers = task.predict(rows)
    assert [len(answer["probabilities"]) for answer in answers] == [3, 2]
    for row, answer in zip(rows, answers, strict=True):
        (alone,) = task.predict([row])
        assert_close(alone["probabilities"], answer["probabilities"], 1e-5)
    task.save_to_preset(tmp_path / "preset")
    assert kbert.Task.from_preset(tmp_path / "preset").predict(rows) == answers


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_numbers(tmp_path):
    options = {**FIT, "epochs": 2}
    whole = classifier(dropout=0.5)
    whole.fit(*texts(30), **options)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 6:
                raise KeyboardInterrupt  # in the middle of the second epoch

    options |= {"model_dir": tmp_path, "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        classifier(dropout=0.5).fit(*texts(30), callbacks=[Stop()], **options)
    again = classifier(dropout=0.5)
    again.fit(*texts(30), **options)
    for path, wanted in values(whole).items():
        np.testing.assert_array_equal(values(again)[path], wanted, path)


@pytest.mark.slow
def test_a_fresh_process_classifies_and_tags(tmp_path):
    asked = ["the red  pen", "", f"a {LONG_WORD} fox", "ça 💡 " * 20]
    task = classifier(max_length=16)
    (answer,) = serve(task.export(tmp_path / "classifier"), ("classify", {"text": asked}))
    for row, wanted in enumerate(task.predict(asked)):
        assert answer["label"][row] == wanted["label"]
        assert_close(answer["scores"][row], list(wanted["probabilities"].values()), 1e-5)
    task = tagger(max_length=16)
    words = [["red", "pen", ""], ["two words", "fox", "the"]]
    tagged, named = serve(
        task.export(tmp_path / "tagger"), ("tag", {"text": asked}), ("tag_words", {"words": words})
    )
    for row, wanted in enumerate(task.predict(asked)):
        count = len(wanted["words"])
        assert tagged["words"][row][:count] == wanted["words"]
        assert tagged["labels"][row][:count] == wanted["labels"]
        assert_close(tagged["scores"][row][:count], wanted["probabilities"], 1e-5)
    for row, wanted in enumerate(task.predict([["red", "pen"], words[1]])):
        assert named["labels"][row][: len(wanted["labels"])] == wanted["labels"]


def test_what_does_not_fit_is_told(tmp_path):
    encoder = kbert.models.ElmoEncoder(make_elmo())
    tokenizer = make_tokenizer()
    message = "ELMo, whose tokens are whole words without ids, is supported by .*Rec.*: Question"
    with pytest.raises(ValueError, match=message):
        QuestionAnswerer(encoder, tokenizer)
    with pytest.raises(TypeError, match=r"an ELMo has elmo.embed\(texts\) instead.*ElmoEncoder"):
        kbert.features(encoder, tokenizer, ["a"])
    make_elmo().save_to_preset(tmp_path / "elmo")
    with pytest.raises(ValueError, match=r"Elmo.from_preset\(folder\).save_to.*Received: an ELMo"):
        kbert.conversion.convert(tmp_path / "elmo", tmp_path / "converted")
    with pytest.raises(ValueError, match=r"ElmoEncoder with max_characters=12.*max_characters=50"):
        TextClassifier(encoder, kbert.CharacterTokenizer(), ["a", "b"])
    config = kbert.EncoderConfig(
        vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16
    )
    with pytest.raises(ValueError, match=r"Encoder with max_characters=None.*max_characters=12"):
        TextClassifier(kbert.Encoder(config), tokenizer, ["a", "b"])
    with pytest.raises(ValueError, match=r"requires a kbert.Encoder or .*Received: a ElmoEncoder"):
        classifier().fit(*texts(8), layer_decay=0.8)
