"""`tfds:` names as tables, on a builder written here: no download."""

import numpy as np
import pytest

from kbert.data import read_table

tfds = pytest.importorskip("tensorflow_datasets")


class KbertVerdicts(tfds.core.GeneratorBasedBuilder):
    """Texts with a class label, tags and a nested feature; a test split without labels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        tags = tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-PER"]))
        features = {
            "sentence": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["bad", "good"]),
            "tags": tags,
            "idx": np.int32,
            "nested": {"deep": tfds.features.Text()},
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(1),
            "test": self._generate_examples(-1),
            "partly": self._generate_examples(-1, 0),
        }

    def _generate_examples(self, *labels):
        for number, label in enumerate(labels):
            yield (
                number,
                {
                    "sentence": "Schön.",
                    "label": label,
                    "tags": [0, 1],
                    "idx": 5 + number,
                    "nested": {"deep": "x"},
                },
            )


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    KbertVerdicts(data_dir=folder).download_and_prepare()
    tfds.core.add_data_dir(folder)


def test_class_labels_come_as_names():
    table = read_table("tfds:kbert_verdicts:train", columns={"text": "sentence", "label": "label"})
    assert table.columns == {"text": ["Schön."], "label": ["good"]}
    assert table.place(0) == "row 0 of tfds:kbert_verdicts:train"
    table = read_table("tfds:kbert_verdicts", columns={"text": "sentence", "labels": "tags"})
    assert table["labels"] == [["O", "B-PER"]]


def test_rows_without_a_label_are_left_out(caplog):
    table = read_table("tfds:kbert_verdicts:partly", columns={"label": "label", "id": "idx"})
    assert table.columns == {"label": ["bad"], "id": [6]}
    assert "tfds:kbert_verdicts:partly: 1 rows are left out: they have no label" in caplog.text


def test_without_columns_all_flat_features_are_taken():
    table = read_table("tfds:kbert_verdicts")
    assert set(table.columns) == {"sentence", "label", "tags", "idx"}
    assert table["idx"] == [5]


def test_a_split_without_labels_has_no_column_of_them():
    assert "label" not in read_table("tfds:kbert_verdicts:test")


@pytest.mark.parametrize(
    ("name", "columns", "match"),
    [
        ("tfds:kbert_verdicts", {"text": "body"}, r"has the features .* Received: \['body'\]"),
        ("tfds:kbert_verdicts:dev", None, "has the splits"),
        ("tfds:kbert_no_such_thing", None, "has no such data set"),
    ],
)
def test_unknown_names_raise(name, columns, match):
    with pytest.raises(ValueError, match=match):
        read_table(name, columns=columns)
