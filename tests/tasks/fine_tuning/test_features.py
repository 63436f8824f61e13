"""Heads on chosen layers and with a BiLSTM: numbers, freezing, folders, exports, bad input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.configs.awd_lstm import AwdLstmConfig
from kbert.conversion import convert
from kbert.core.layer_choice import choose_layers
from kbert.edit.pruning import keep_layers
from kbert.export import load_exported
from kbert.models import DecoderEncoder
from kbert.tasks import TextClassifier, TextEmbedder, TokenClassifier
from tests.harness import assert_close, randomise, to_numpy
from tests.heads.test_token_features import combined
from tests.tasks.fine_tuning import test_elmo_tasks as elmo
from tests.tasks.fine_tuning.test_decoder_tasks import make_decoder
from tests.tasks.fine_tuning.test_fine_tuned_heads import batch, saved
from tests.tasks.pretraining.test_export import serve

pytestmark = pytest.mark.tensorflow

TAGS = ["O", "B-thing", "I-thing"]
TEXTS = ["the red pen", "", "one two three big house no", "a fox"]
TABLE = {"text": TEXTS, "labels": [["O", "B-thing", "I-thing"], [], ["O"] * 6, ["O", "B-thing"]]}
# BERT's Table 7.
CHOICES = (
    *("embeddings", "second_to_last", "last", "mix_last_four", "concat_last_four", "mix_all"),
)
SMALL = {"head": "bilstm:width=5"}
FIT = {"epochs": 1, "batch_size": 2, "verbose": 0}


def make(kind, config, tokenizer, **options):
    keras.utils.set_random_seed(1)
    encoder = kbert.Encoder(config.replace(num_layers=4))
    task = kind(encoder, tokenizer, TAGS if kind is TokenClassifier else ["no", "yes"], **options)
    if task._features is not None:
        randomise(task._features, 0.5)
    return task


def fit(task, **options):
    data = (TABLE,) if isinstance(task, TokenClassifier) else (TEXTS, [0, 1, 1, 0])
    return task.fit(*data, **{**FIT, **options})


@pytest.mark.parametrize("layers", CHOICES)
def test_logits_are_the_head_on_transformers_hidden_states(layers, tmp_path, tokenizer):
    torch = pytest.importorskip("torch")
    model = saved(tmp_path, tokenizer, "bert", "Model")
    task = TokenClassifier.from_preset(
        tmp_path, new_head=True, labels=TAGS, feature_layers=layers, dropout=0.0
    )
    randomise(task.tokens)
    randomise(task._features, 0.5)
    features = batch(tokenizer, "bert", None)
    names = {"input_ids": "token_ids", "attention_mask": "padding_mask"}
    inputs = {theirs: torch.tensor(features[ours]) for theirs, ours in names.items()}
    inputs["token_type_ids"] = torch.tensor(features["segment_ids"])
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    vectors = combined([x.numpy() for x in states], layers, task._features)
    wanted = vectors @ to_numpy(task.tokens.dense.kernel) + to_numpy(task.tokens.dense.bias)
    real = features["padding_mask"] == 1
    assert_close(to_numpy(task(features)["tokens"])[real], wanted[real], 1e-4)


def test_a_text_s_vector_is_the_mean_and_the_maximum_of_its_tokens(config, tokenizer):
    task = make(TextClassifier, config, tokenizer, feature_layers="mix", dropout=0.0)
    (ids,) = tokenizer.encode(["the red pen"]).to_list()
    row = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]], "int32")
    states = task.encoder({"token_ids": row}, return_hidden_states=True)["hidden_states"]
    (vectors,) = combined([to_numpy(x) for x in states], "mix", task._features)
    pooled = np.concatenate([vectors.mean(0), vectors.max(0)])
    dense = task.classifier.dense
    logits = pooled @ to_numpy(dense.kernel) + to_numpy(dense.bias)
    wanted = np.exp(logits) / np.exp(logits).sum()
    (answer,) = task.predict(["the red pen"])
    assert_close([*answer["probabilities"].values()], wanted, 1e-5)


def test_elmo_s_mix_is_that_of_its_encoder():
    default = elmo.tagger()
    mixed = elmo.tagger(feature_layers="mix")
    assert mixed._features is None
    randomise(mixed.tokens)
    for weight, value in zip(default.tokens.weights, mixed.tokens.weights, strict=True):
        weight.assign(value)
    assert mixed.predict(["the red pen"]) == default.predict(["the red pen"])
    last = elmo.classifier(feature_layers="last", **SMALL)
    last.fit(*elmo.texts(8), **{**elmo.FIT, "epochs": 1})
    assert {w.path.split("/")[0] for w in last.trainable_weights} == {
        *("features", "classifier", "encoder")
    }


def test_the_defaults_are_left_out_of_settings(config, tokenizer):
    plain = make(TokenClassifier, config, tokenizer)
    assert plain._features is None
    assert not {"feature_layers", "head"} & plain.settings.keys()
    task = make(TokenClassifier, config, tokenizer, feature_layers=(1, -1), **SMALL)
    assert task.settings.items() >= {"feature_layers": [1, -1], **SMALL}.items()
    assert make(TokenClassifier, config, tokenizer, head="bilstm")._features.units == 2 * 768


def changed(task, before):
    pairs = zip(task.weights, before, strict=True)
    return {weight.path.split("/")[0] for weight, x in pairs if (to_numpy(weight) != x).any()}


@pytest.mark.parametrize("kind", [TextClassifier, TokenClassifier], ids=["texts", "words"])
def test_a_frozen_encoder_gets_no_gradient(kind, config, tokenizer):
    task = make(kind, config, tokenizer, feature_layers="mix", **SMALL)
    before = [to_numpy(weight) for weight in task.weights]
    fit(task, freeze="encoder/*")
    head = "classifier" if kind is TextClassifier else "tokens"
    assert changed(task, before) == {"features", head}
    slots = " ".join(variable.path for variable in task.optimizer.variables)
    assert "features" in slots
    assert "encoder" not in slots


def backward_operations(task, frozen):
    """Names of the encoder's operations in the backward pass of a training step."""
    features = {**batch(task.tokenizer, "bert", None), "label_weights": np.ones((3, 12), "float32")}
    features["labels"] = np.zeros((3, 12), "int32")
    for weight in task.encoder.weights:
        weight.trainable = not frozen
    fit(task)  # makes the step's state
    step = tf.function(lambda: task.train_step(features), autograph=False)
    names = [x.name for x in step.get_concrete_function().graph.get_operations()]
    return [name for name in names if "gradient_tape" in name and "/encoder" in name]


def test_a_frozen_encoder_has_no_backward_pass(config, tokenizer):
    task = make(TokenClassifier, config, tokenizer, feature_layers="mix")
    assert not backward_operations(task, frozen=True)
    task = make(TokenClassifier, config, tokenizer, feature_layers="mix")
    assert backward_operations(task, frozen=False)


@pytest.mark.parametrize("kind", [TextClassifier, TokenClassifier], ids=["texts", "words"])
@pytest.mark.parametrize(
    "options",
    [{"feature_layers": "mix:1,-1"}, {"feature_layers": "sum_all"}, SMALL],
    ids=["mix", "sum", "bilstm"],
)
def test_a_task_comes_back_from_its_folder(kind, options, config, tokenizer, tmp_path):
    task = make(kind, config, tokenizer, max_length=12, doc_stride=4, **options)
    wanted = task.predict([*TEXTS, "the red pen " * 12])
    task.save_to_preset(tmp_path / "preset")
    again = kbert.Task.from_preset(tmp_path / "preset")
    assert again.settings == task.settings
    assert again.predict([*TEXTS, "the red pen " * 12]) == wanted
    task.save_weights(tmp_path / "task.weights.h5")
    other = make(kind, config, tokenizer, max_length=12, doc_stride=4, **options)
    randomise(other)
    other.load_weights(tmp_path / "task.weights.h5")
    assert other.predict([*TEXTS, "the red pen " * 12]) == wanted
    with pytest.raises(
        ValueError, match=r"cannot be converted: no other format.*Received: (feat|h)"
    ):
        convert(tmp_path / "preset", tmp_path / "converted", format="huggingface")
    for format in ("huggingface", "keras_hub"):
        with pytest.raises(
            ValueError, match=f"must be \"kbert\" for a head.*Received: '{format}' for"
        ):
            task.save_to_preset(tmp_path / format, format)


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_numbers(config, tokenizer, tmp_path):
    options = {"feature_layers": "mix", "dropout": 0.3, **SMALL}
    settings = {"epochs": 2, "freeze": "encoder/*", "learning_rate": 1e-3}
    whole = make(TokenClassifier, config, tokenizer, **options)
    fit(whole, **settings)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 3:
                raise KeyboardInterrupt

    settings |= {"model_dir": tmp_path, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(make(TokenClassifier, config, tokenizer, **options), callbacks=[Stop()], **settings)
    again = make(TokenClassifier, config, tokenizer, **options)
    fit(again, **settings)
    for weight, wanted in zip(again.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(weight, wanted, weight.path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TextClassifier, TokenClassifier], ids=["texts", "words"])
def test_exports(kind, config, tokenizer, tmp_path):
    task = make(kind, config, tokenizer, feature_layers="mix", **SMALL)
    wanted = task.predict(TEXTS)
    entry = "classify" if kind is TextClassifier else "tag"
    (served,) = serve(task.export(tmp_path / "served"), (entry, {"text": TEXTS}))
    for format in ("onnx", "openvino", "litert"):
        pytest.importorskip({"onnx": "tf2onnx", "litert": "ai_edge_litert"}.get(format, format))
        task.export(tmp_path / format, format=format)
        for found, answer in zip(
            load_exported(tmp_path / format).predict(TEXTS), wanted, strict=True
        ):
            if kind is TextClassifier:
                assert found["probability"] == pytest.approx(answer["probability"], abs=1e-4)
            else:
                assert found["labels"] == answer["labels"]
    for row, answer in enumerate(wanted):
        if kind is TextClassifier:
            assert_close(served["scores"][row], [*answer["probabilities"].values()], 1e-5)
        else:
            assert served["labels"][row][: len(answer["words"])] == answer["labels"]


def test_a_decoder_s_language_model_reads_its_own_last_states(tokenizer):
    encoder = DecoderEncoder.extend(make_decoder(tokenizer))
    features = batch(tokenizer, "bert", None)
    del features["segment_ids"]
    plain, featured = (
        TextClassifier(encoder, tokenizer, ["no", "yes"], dropout=0.0, **options)
        for options in ({}, {"feature_layers": (0, -1), **SMALL})
    )
    wanted, found = (task(features, return_read=True) for task in (plain, featured))
    assert_close(found["read"]["sequence"], wanted["read"]["sequence"], 1e-6)
    fit(featured)


def test_embeddings_of_chosen_layers(config, tokenizer, tmp_path):
    encoder = kbert.Encoder(config.replace(num_layers=4))
    task = TextEmbedder(encoder, tokenizer, feature_layers="concat_last_four", normalize=False)
    assert task.predict(TEXTS).shape == (4, 4 * config.hidden_size)
    for pooling in ("mean", "cls", "max"):
        chosen = {"feature_layers": "sum:1,-1", "normalize": False, "token_pooling": pooling}
        found = TextEmbedder(encoder, tokenizer, **chosen).predict(TEXTS)
        wanted = kbert.features(encoder, tokenizer, TEXTS, layers="sum:1,-1", pooling=pooling)
        assert_close(found, wanted, 1e-5)
    task.save_to_preset(tmp_path)
    assert_close(TextEmbedder.from_preset(tmp_path).predict(TEXTS), task.predict(TEXTS), 1e-6)
    with pytest.raises(ValueError, match='must be "kbert" for a head on chosen layers'):
        task.save_to_preset(tmp_path / "other", "huggingface")


def test_what_does_not_fit_is_told(config, tokenizer):
    for head in ("lstm", "linear:width=5", "bilstm:width=0", "bilstm:width=2.5", "bilstm:units=5"):
        with pytest.raises(ValueError, match=f"must be linear, bilstm, or with.*: '{head}'"):
            make(TextClassifier, config, tokenizer, head=head)
    with pytest.raises(ValueError, match=r"layers must be one of .*Received: 'all'"):
        make(TokenClassifier, config, tokenizer, feature_layers="all")
    with pytest.raises(ValueError, match=r"0 .the embeddings. to 4. Received: 5"):
        make(TokenClassifier, config, tokenizer, feature_layers=5)
    assert choose_layers("mix", 4).indices == (0, 1, 2, 3, 4)


def test_an_encoder_decoder_has_the_states_of_its_decoder(tokenizer):
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "hidden_size": 8, "num_heads": 2}
    model = kbert.Seq2Seq(
        kbert.Seq2SeqConfig(
            **sizes, num_layers=2, num_decoder_layers=3, intermediate_size=16, positions="learned"
        )
    )
    encoder = kbert.models.Seq2SeqEncoder(model)
    task = TextClassifier(encoder, tokenizer, ["no", "yes"], feature_layers="mix")
    assert task._features.layers.indices == (0, 1, 2, 3)
    task.predict(TEXTS)


def test_states_of_another_width_are_refused(tokenizer):
    config = AwdLstmConfig(
        vocabulary_size=tokenizer.vocabulary_size, hidden_size=8, intermediate_size=12
    )
    make_encoder = kbert.models.AwdLstm
    for layers in ("mix", "second_to_last"):
        with pytest.raises(ValueError, match=r"have the width 8 of the encoder.*has the width 12"):
            TextClassifier(make_encoder(config), tokenizer, 2, feature_layers=layers)
    with pytest.raises(ValueError, match=r"have the width 8 of the encoder.*has the width 12"):
        kbert.features(make_encoder(config), tokenizer, TEXTS, layers="second_to_last")
    task = TextClassifier(make_encoder(config), tokenizer, 2, feature_layers=(0, -1), **SMALL)
    assert len(task.predict(TEXTS)) == len(TEXTS)


def test_a_batch_without_a_padding_mask_has_no_padding(config, tokenizer):
    task = make(TokenClassifier, config, tokenizer, feature_layers="mix", **SMALL)
    batch = {"token_ids": np.array([[2, 5, 6, 3]])}
    wanted = task({**batch, "padding_mask": np.ones((1, 4), "int32")})["tokens"]
    assert_close(task(batch)["tokens"], wanted, 1e-6)


def test_layers_are_not_removed_below_a_head_that_reads_them(config, tokenizer):
    task = make(TokenClassifier, config, tokenizer, feature_layers=3)
    with pytest.raises(ValueError, match=r"whose head reads chosen layers.*feature_layers=3"):
        keep_layers(task, "bottom", 2)
    task = make(TokenClassifier, config, tokenizer, **SMALL)
    assert keep_layers(task, "bottom", 2).settings["head"] == SMALL["head"]


def test_a_soup_of_heads_on_different_layers_is_refused(config, tokenizer):
    tasks = [make(TextClassifier, config, tokenizer, feature_layers=x) for x in (1, 2)]
    with pytest.raises(ValueError, match=r"read the same layers. Received: feature_layers=1 and 2"):
        kbert.soup(tasks)
