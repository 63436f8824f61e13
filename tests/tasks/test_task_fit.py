"""Keras' `fit` of tasks that learn from batches: its callbacks, and what it compiles."""

import keras
import pytest

from kbert.training import AdamW
from tests.tasks import toy
from tests.tasks.generation import writing


class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.rates = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def callbacks(folder):
    return [
        Seen(),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / 2**epoch),
        keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9),
    ]


def check(task, folder, fit) -> None:
    """The callbacks are heard, whether `fit` compiles or the user has, and so every time."""
    for compiled in (False, True):
        if compiled:
            task.compile(AdamW(1.0), jit_compile=False)
        given = callbacks(folder)
        history = fit(callbacks=given, epochs=4, verbose=0)
        assert history.epoch == [0, 1]  # then EarlyStopping
        assert given[0].batches == [0, 1, 0, 1]
        assert given[0].rates == [0.5, 0.25]
        assert {path.name for path in folder.iterdir()} == {"1.weights.h5", "2.weights.h5"}
    assert task.compiled_by_user


def test_pretraining(task, tokenizer, tmp_path):
    data = toy.batches(tokenizer, batch_size=6)
    check(task, tmp_path, lambda **options: task.fit(data, steps_per_epoch=2, **options))


@pytest.mark.slow
def test_translation(tmp_path):
    task = writing.translator()
    sources, targets = zip(*writing.reversed_pairs(8), strict=True)
    fit = {"max_tokens": 64, "steps_per_epoch": 2}
    check(task, tmp_path, lambda **options: task.fit(sources, targets, **fit, **options))


def test_a_second_fit_by_default_starts_from_step_0(task, tokenizer):
    """Its rate would else be 0: the end of the first one's decay."""
    data = toy.batches(tokenizer, batch_size=6)
    for _ in range(2):
        task.fit(data, steps_per_epoch=3, verbose=0)
        assert int(task.optimizer.iterations) == 3
    task.compile(AdamW(1e-3), jit_compile=False)
    for count in (3, 6):  # the user's own continues
        task.fit(data, steps_per_epoch=3, verbose=0)
        assert int(task.optimizer.iterations) == count


def test_a_checkpoint_of_the_whole_task_says_what_to_do(task, tokenizer, tmp_path):
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "a.keras")
    with pytest.raises(ValueError, match=r"save_weights_only=True.*save_to_preset"):
        task.fit(
            toy.batches(tokenizer, batch_size=6),
            steps_per_epoch=1,
            verbose=0,
            callbacks=[saving],
        )
