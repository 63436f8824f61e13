from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.estimates import estimate
from kbert.training.run.phases import parse_phases
from tests.training import toy_task
from tests.training.run.of_functions import OfFunctions


def test_estimate_counts_bytes_and_times_each_phase():
    task = toy_task.ToyTask()
    task.compile(AdamW(0.01))
    phases = parse_phases("6:0.9:16,12:0.1:8", 1000, 16)

    def make_dataset(phase, start):
        return toy_task.dataset(8, rows=phase.batch_size, length=phase.sequence_length)

    found = estimate(task, OfFunctions(make_dataset), phases)
    parameters = task.count_params() * 4
    assert found.gradients == parameters
    # Two moments of every parameter, and the optimizer's rate and count (int64 on TensorFlow).
    assert found.slots - 2 * parameters in (4 + 4, 4 + 8)
    assert found.peak > found.weights + found.slots + found.gradients
    short, long = found.seconds_per_step
    assert found.seconds == 900 * short + 100 * long
    text = found.summary(phases)
    assert "900 steps of 16 x 6 tokens" in text
    assert "memory: weights" in text
