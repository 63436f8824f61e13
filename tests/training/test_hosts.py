import itertools
import signal
import threading
import time

import pytest

from kbert.training import hosts as module
from kbert.training.hosts import Hosts
from tests.waiting import PATIENCE


class Shared:
    """A store in one process: a key is set once."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            if key in self.values:
                raise RuntimeError(f"{key} is set already")
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, seconds):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, seconds)
            return self.values.get(key)


@pytest.fixture
def group(monkeypatch):
    """Makes hosts of one run, as their processes would: with the same number."""
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    store = Shared()

    def make(count):
        found = [Hosts(store, index, count) for index in range(count)]
        for host in found:
            host._prefix = "run"
        return found

    return make


def train(host, barrier, steps, delay=0.0, at=lambda host, step: None):
    """Steps that all hosts must make together; returns the step and the signal of the end."""
    with host.listening():
        for step in range(1, steps + 1):
            barrier.wait(PATIENCE)  # the sum of the gradients
            at(host, step)
            time.sleep(delay)
            number = host.stops_after(step)
            if number is not None:
                return step, number
    return steps, None


def run_all(hosts, steps, delays=None, **options):
    barrier = threading.Barrier(len(hosts))
    found, threads = [None] * len(hosts), []
    for i, host in enumerate(hosts):

        def target(i=i, host=host):
            found[i] = train(host, barrier, steps, (delays or [0.001] * len(hosts))[i], **options)

        threads.append(threading.Thread(target=target))
        threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return found


def steps_without_end(host):
    for step in itertools.count(2):
        host.stops_after(step)
        time.sleep(0.01)


@pytest.mark.parametrize("delays", [[0.001] * 3, [0.03, 0.0, 0.005]])
def test_all_stop_after_the_same_step(group, delays):
    """A step that one of them has begun is made by all, however far apart they are."""

    def at(host, step):
        if host._index == 1 and step == 20:
            host.stop(signal.SIGTERM)

    ends = run_all(group(3), 10_000, delays, at=at)
    assert len(set(ends)) == 1
    step, number = ends[0]
    assert 20 <= step < 10_000
    assert number == signal.SIGTERM


def test_two_signals_are_one_stop(group):
    def at(host, step):
        if step == 5:
            host.stop(signal.SIGTERM if host._index else signal.SIGINT)

    ends = run_all(group(2), 10_000, at=at)
    assert ends[0] == ends[1]
    assert ends[0][1] in (signal.SIGTERM, signal.SIGINT)


def test_a_signal_in_the_last_step_leaves_the_run_whole(group):
    def at(host, step):
        if step == 30 and host._index == 0:
            host.stop(signal.SIGTERM)
            time.sleep(0.1)  # the other is at its end by then

    assert run_all(group(2), 30, at=at)[1][0] == 30


def test_without_a_signal_nobody_stops(group):
    assert run_all(group(2), 50) == [(50, None)] * 2


def test_a_host_that_does_not_answer_is_an_error(group, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.2)
    host, _ = group(2)
    host.stop(signal.SIGTERM)

    with host.listening(), pytest.raises(RuntimeError, match="no answer of another host"):
        steps_without_end(host)


@pytest.mark.parametrize("in_step", [False, True])
def test_a_store_that_is_gone_is_said_in_the_step_and_not_at_the_end(group, monkeypatch, in_step):
    """Where the run is over, it is over; before, the next step raises what the store said."""
    host, _ = group(2)

    def gone(*arguments):
        raise ConnectionError("the chief is gone")

    with host.listening():
        host.stops_after(1)
        monkeypatch.setattr(host._store, "get", gone)
        monkeypatch.setattr(host._store, "set", gone)
        if in_step:
            with pytest.raises(ConnectionError, match="the chief is gone"):
                steps_without_end(host)


def test_the_chief_s_values_count(group):
    chief, other = group(2)
    assert chief.from_chief(lambda: {"f1": 0.5}) == {"f1": 0.5}
    assert other.from_chief(lambda: {"f1": 0.25}) == {"f1": 0.5}
    assert chief.from_chief(lambda: {"f1": 0.75}) == {"f1": 0.75}
    assert other.from_chief(lambda: {"f1": 0.25}) == {"f1": 0.75}


def test_a_chief_that_does_not_send_is_an_error(group, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    _, other = group(2)
    with pytest.raises(RuntimeError, match="All hosts require the chief's evaluation"):
        other.from_chief(dict)


def test_which_errors_are_of_a_host_that_left(group):
    import tensorflow as tf

    host, _ = group(2)
    lost = tf.errors.UnavailableError(None, None, "Connection reset by peer")
    assert host.lost_another(lost)
    assert not host.lost_another(ValueError("Gloo"))
    assert not Hosts(None, 0, 1).lost_another(lost)
    error = pytest.importorskip("jax").errors.JaxRuntimeError
    assert host.lost_another(error("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"))
    assert not host.lost_another(error("RESOURCE_EXHAUSTED: out of memory"))


def test_what_is_used_of_the_engines_is_there():
    """Neither engine's store is public."""
    import keras

    if keras.backend.backend() == "jax":
        from jax._src import distributed
        from keras.src.backend.jax import distribution_lib

        assert hasattr(distributed.global_state, "client")
        assert callable(distribution_lib.initialize_rng)
    else:
        from tensorflow.python.eager import context

        for name in ("set_config_key_value", "get_config_key_value"):
            assert callable(getattr(context.context(), name))
