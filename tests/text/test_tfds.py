"""`tfds:` on a builder written here, generated on the spot: no download."""

from typing import ClassVar

import numpy as np
import pytest

from kbert.text import documents, open_sources, read_pairs, source

tfds = pytest.importorskip("tensorflow_datasets")

TEXTS = ["First text. Two sentences.", "Zweiter Text über Öl.", "第三。", "Fourth.", "Fifth."]


class KbertRhymes(tfds.core.GeneratorBasedBuilder):
    """A few texts with a label, in two configurations."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name) for name in ("plain", "long", "broken")
    ]

    def _info(self):
        features = {"body": tfds.features.Text(), "label": np.int64}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(TEXTS), "test": self._generate_examples(["T."])}

    def _generate_examples(self, texts):
        for number, text in enumerate(texts):
            if self.builder_config.name == "long":
                text = text * 30
            body = b"bad \xff byte" if self.builder_config.name == "broken" else text
            yield number, {"body": body, "label": number}


class KbertCouplets(tfds.core.GeneratorBasedBuilder):
    """A few texts in two languages, one of them missing."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return self.dataset_info_from_configs(features=features, supervised_keys=("de", "en"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number, text in enumerate(("Öl", "", "Brot")):
            yield number, {"de": text, "en": f"text {number}"}


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("plain", "long", "broken"):
        KbertRhymes(data_dir=folder, config=config).download_and_prepare()
    KbertCouplets(data_dir=folder).download_and_prepare()
    tfds.core.add_data_dir(folder)


def test_documents_of_a_split():
    found = list(documents("tfds:kbert_rhymes/plain", field="body"))
    assert sorted(found) == sorted([["First text.", "Two sentences."], *([t] for t in TEXTS[1:])])
    assert list(documents("tfds:kbert_rhymes/plain:test", field="body")) == [["T."]]
    assert len(list(documents("tfds:kbert_rhymes/plain:train[:2]", field="body"))) == 2


def test_the_order_is_the_same_every_time_and_progress_ends_at_the_size():
    (opened,) = open_sources("tfds:kbert_rhymes/plain", field="body")
    assert list(opened.documents()) == list(opened.documents())
    assert opened.consumed == opened.size > 0
    assert opened.identity()["examples"] == len(TEXTS)


def test_long_examples_are_cut(monkeypatch, caplog):
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 100)
    (opened,) = open_sources("tfds:kbert_rhymes/long:train", field="body")
    assert max(map(len, opened.documents())) <= 100
    assert opened.cut_documents == len(TEXTS)
    assert "tfds:kbert_rhymes/long:train, example" in caplog.text


def test_bad_bytes_are_named_or_replaced():
    with pytest.raises(ValueError, match=r"broken:test, example 0: invalid UTF-8 at byte 4"):
        list(documents("tfds:kbert_rhymes/broken:test", field="body"))
    found = documents("tfds:kbert_rhymes/broken:test", field="body", on_bad_utf8="replace")
    assert list(found) == [["bad � byte"]]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ("kbert_rhymes/plain", "text", r"fields \['body', 'label'\].*Received: field='text'"),
        ("kbert_rhymes/plain", "label", r"example 0: the field 'label' must be text"),
        ("kbert_rhymes/plain:dev", "body", r"splits \['test', 'train'\]. Received: 'dev'"),
        ("kbert_no_such_thing", "body", r"no such data set;.*Received: 'kbert_no_such_thing'"),
    ],
)
def test_what_is_not_there(spec, field, message):
    with pytest.raises(ValueError, match=message):
        list(documents(f"tfds:{spec}", field=field))


def test_pairs_of_a_split(caplog):
    pairs = read_pairs("tfds:kbert_couplets:train")
    assert sorted(pairs) == [("Brot", "text 2"), ("Öl", "text 0")]
    assert pairs.empty == 1
    assert pairs.consumed == pairs.size > 0
    assert "the first: tfds:kbert_couplets:train, example" in caplog.text
    turned = read_pairs("tfds:kbert_couplets", columns=("en", "de"))
    assert sorted(turned) == [("text 0", "Öl"), ("text 2", "Brot")]
    assert turned.identity() != pairs.identity()


@pytest.mark.parametrize(
    ("spec", "columns", "message"),
    [
        ("kbert_rhymes/plain", None, r"the features \['body', 'label'\].*Received: columns=None"),
        ("kbert_rhymes/plain", (0, 1), r"name those of source and target.*columns=\(0, 1\)"),
        ("kbert_rhymes/plain", ("body", "title"), r"fields \['body', 'label'\].*field='title'"),
        ("kbert_rhymes/plain", ("body", "label"), "example 0: the field 'label' must be text"),
        ("kbert_rhymes/broken:test", ("body", "label"), "example 0: invalid UTF-8 at byte 4"),
    ],
)
def test_features_that_are_no_pair(spec, columns, message):
    with pytest.raises(ValueError, match=message):
        list(read_pairs(f"tfds:{spec}", columns=columns))
