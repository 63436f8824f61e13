"""Settings of a run: the paper's defaults, ranges, what a run's identity is."""

import pytest

from kbert.experiments import Settings


def test_the_defaults_are_those_of_the_paper():
    settings = Settings()
    assert (settings.learning_rate, settings.batch_size, settings.epochs) == (5e-5, 32, 3)
    assert (settings.warmup_share, settings.weight_decay) == (0.1, 0.01)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch_size", 0, "`batch_size` must be a whole number of at least 1. Received: 0"),
        ("patience", 0, "`patience` must be a whole number of at least 1 or None. Received: 0"),
        ("layer_decay", 1.5, "`layer_decay` must be a number from 0 to 1 or None. Received: 1.5"),
        ("learning_rate", -1.0, "`learning_rate` must be a number of at least 0. Received: -1.0"),
        ("precision", "float16", "must be one of float32, .*mixed_float16. Received: 'float16'"),
    ],
)
def test_values_out_of_range(field, value, message):
    with pytest.raises(ValueError, match=message):
        Settings(**{field: value})


def test_what_changes_no_result_is_no_part_of_the_identity():
    plain = Settings().identity()
    assert Settings(strategy="mirrored", checkpoint_every=7).identity() == plain
    assert Settings(seed=1).identity() != plain


def test_all_arguments_of_fit_are_settings():
    import inspect

    from kbert.tasks.fine_tuning.base import FineTuningTask

    known = inspect.signature(FineTuningTask.fit).parameters
    assert set(Settings().training()) <= set(known)
    assert Settings(freeze=["encoder/*"]).to_dict()["freeze"] == ["encoder/*"]
