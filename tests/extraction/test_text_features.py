"""The scikit-learn transformer: pipelines, cross-validation, searches, copies and files."""

import pickle
from unittest import mock

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from kbert.extraction import TextFeatures, features, text_features
from tests.harness import randomise

TEXTS = [f"{colour} {thing}" for colour in ("red", "blue") for thing in "pen fox dog cat".split()]
LABELS = ["warm"] * 4 + ["cold"] * 4


@pytest.fixture(scope="module")
def preset(encoder, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    encoder.save_to_preset(folder)
    tokenizer.save(folder)
    return str(folder)


def pipeline(*args, **settings):
    return make_pipeline(TextFeatures(*args, **settings), LogisticRegression(max_iter=500))


def test_it_gives_the_features(encoder, tokenizer, preset):
    expected = features(encoder, tokenizer, TEXTS, layers="sum_all", pooling="max")
    for args in ((encoder, tokenizer), (preset,)):
        step = TextFeatures(*args, layers="sum_all", pooling="max")
        np.testing.assert_array_equal(step.fit(TEXTS, LABELS).transform(TEXTS), expected)
        assert step.get_feature_names_out().shape == (16,)


def test_cross_validation_and_a_search_over_layers(preset, encoder, tokenizer):
    scores = cross_val_score(pipeline(preset), TEXTS, LABELS, cv=2, error_score="raise")
    assert scores.shape == (2,)
    grid = {"textfeatures__layers": ["last", (0, -1)], "textfeatures__pooling": ["mean"]}
    loaded = pipeline(encoder, tokenizer)
    search = GridSearchCV(loaded, grid, cv=2, error_score="raise").fit(TEXTS, LABELS)
    assert search.best_params_.keys() == grid.keys()
    assert set(search.predict(["red pen", "blue fox"])) <= set(LABELS)


def test_copies_share_the_encoder(encoder, tokenizer):
    step = TextFeatures(encoder, tokenizer, layers=[1, 2])
    copy = clone(step)
    assert copy is not step
    assert copy.encoder is encoder
    assert copy.get_params() == step.get_params()


def test_a_file_of_a_pipeline_holds_the_name_of_the_preset(preset, tmp_path):
    model = pipeline(preset).fit(TEXTS, LABELS)
    joblib.dump(model, tmp_path / "model.joblib")
    assert (tmp_path / "model.joblib").stat().st_size < 10_000
    loaded = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), model.predict_proba(TEXTS))


def test_with_an_encoder_it_is_pickled_with_it(encoder, tokenizer):
    step = TextFeatures(encoder, tokenizer)
    again = pickle.loads(pickle.dumps(step))
    np.testing.assert_array_equal(again.transform(TEXTS), step.transform(TEXTS))


def test_a_folder_that_was_written_again_is_loaded_again(encoder, tokenizer, tmp_path, monkeypatch):
    def save(folder, seed):
        other = type(encoder)(encoder.config)
        randomise(other, seed=seed)
        other.save_to_preset(folder)
        tokenizer.save(folder)
        return features(other, tokenizer, TEXTS)

    first = save(tmp_path / "a", 1)
    monkeypatch.chdir(tmp_path)
    step = TextFeatures("a").fit()
    np.testing.assert_array_equal(step.transform(TEXTS), first)
    loads = mock.Mock(wraps=text_features.load_tokenizer)
    monkeypatch.setattr(text_features, "load_tokenizer", loads)
    clone(step).fit().transform(TEXTS)
    assert not loads.called
    second = save(tmp_path / "a", 2)
    for again in (step, TextFeatures("a"), clone(step)):
        np.testing.assert_array_equal(again.fit().transform(TEXTS), second)
    assert loads.call_count == 1
    third = save(tmp_path / "b" / "a", 3)
    monkeypatch.chdir(tmp_path / "b")
    np.testing.assert_array_equal(TextFeatures("a").transform(TEXTS), third)


CHECKS = (
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_valid_tag_types",
    "check_estimator_tags_renamed",
)


@pytest.mark.parametrize("check", CHECKS)
def test_scikit_learns_own_checks(check, encoder, tokenizer):
    getattr(estimator_checks, check)("TextFeatures", TextFeatures(encoder, tokenizer))


def test_what_cannot_be(encoder, tokenizer):
    with pytest.raises(ValueError, match="An encoder requires its tokenizer"):
        TextFeatures(encoder).fit(TEXTS)
    with pytest.raises(ValueError, match="one vector per text"):
        TextFeatures(encoder, tokenizer, pooling=None).fit(TEXTS)
    with pytest.raises(ValueError, match="layers must be one of"):
        TextFeatures(encoder, tokenizer, layers="all").fit(TEXTS)
    with pytest.raises(ValueError, match=r"must be from encoder, .* Received: layer"):
        TextFeatures(encoder, tokenizer).set_params(layer="last")


def test_doc_stride_by_its_former_name(preset):
    # What the version before has pickled has the former name.
    step = TextFeatures(preset)
    step.stride = vars(step).pop("doc_stride")
    assert pickle.loads(pickle.dumps(step)).get_params() == TextFeatures(preset).get_params()
