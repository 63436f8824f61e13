"""Data sets of TensorFlow Datasets with the published features and our examples: no download."""

import contextlib
import shutil

import pytest

tfds = pytest.importorskip("tensorflow_datasets")


@contextlib.contextmanager
def data_dir(folder):
    """Makes the data sets in a folder known by their names, and no others."""
    from tensorflow_datasets.core.utils import file_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_utils, "_REGISTERED_DATA_DIRS", set())
        tfds.core.add_data_dir(folder)
        yield folder


def store(folder, name, **splits):
    """Prepares a data set in a folder, with the features of the installed builder of that name.

    `splits` are name of a split -> its examples, which TensorFlow Datasets shuffles.
    """
    builder = tfds.builder(name, data_dir=folder)
    shutil.rmtree(builder.data_path, ignore_errors=True)
    builder = tfds.builder(name, data_dir=folder)
    generators = {split: enumerate(examples) for split, examples in splits.items()}
    builder._split_generators = lambda dl_manager: generators
    tfds.disable_progress_bar()
    builder.download_and_prepare()


def store_file(folder, name, path, *arguments):
    """Prepares a data set whose split "train" is a published file, as the builder reads it.

    `arguments` are further arguments of the builder's generator.
    """
    found = tfds.builder(name, data_dir=folder)._generate_examples(path, *arguments)
    store(folder, name, train=[example for _, example in found])
