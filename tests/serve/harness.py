"""A service that runs in a thread of the tests, tiny models for it, and raw requests."""

import contextlib
import http.client
import json
import re
import urllib.parse

import tensorflow as tf

import kbert
from kbert.export import export_saved_model
from kbert.serve import BackgroundService, ServiceOptions
from kbert.signatures import Signature
from tests.harness import randomise, tiny_config
from tests.waiting import PATIENCE


class Running(BackgroundService):
    """A service, and requests to it."""

    @property
    def address(self) -> str:
        return self.addresses[0]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            urllib.parse.urlsplit(self.address).netloc, timeout=PATIENCE
        )

    def request(self, method, path, body=None, headers=None) -> tuple[int, dict, dict]:
        """Status, the JSON of the answer, its headers."""
        connection = self.connect()
        with contextlib.closing(connection):
            if body is not None and not isinstance(body, bytes | str):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content), dict(response.getheaders())

    def post(self, path, body, **headers) -> tuple[int, dict]:
        return self.request("POST", path, body, headers)[:2]

    def get(self, path) -> tuple[int, dict]:
        return self.request("GET", path)[:2]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels; `name` may hold some of them."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        start, _, labels = name.partition("{")
        lines = re.findall(rf"^{start}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for found, value in lines if labels.rstrip("}") in found)


def running(**settings) -> Running:
    """A service on free ports, as patient as the tests; stopped behind the `with` block."""
    defaults = {"port": 0, "poll_seconds": 0, "timeout_seconds": PATIENCE}
    return Running(ServiceOptions(**{**defaults, **settings}))


def export_classifier(folder, vocabulary, seed=0, labels=("no", "yes")) -> str:
    """A tiny classifier with random weights."""
    config = tiny_config(vocabulary_size=len(vocabulary), max_positions=64)
    encoder = kbert.Encoder(config)
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    task = kbert.tasks.TextClassifier(encoder, tokenizer, list(labels), max_length=64)
    randomise(task, seed=seed)
    return task.export(folder)


def export_operations(folder) -> str:
    """Signatures of all sorts, none of them a model."""

    def total(numbers):
        return {"total": tf.reduce_sum(numbers, 1)}

    def characters(text):
        found = tf.strings.unicode_split(text, "UTF-8", errors="ignore")
        return {"characters": found.to_tensor(), "count": found.row_lengths()}

    def polite(text):
        rude = tf.strings.regex_full_match(text, ".*rude.*")
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(rude), [text])]):
            return {"length": tf.strings.length(text)}

    def scale(numbers, factor):
        return {"scaled": numbers * factor, "kinds": tf.constant(["a", "b"])}

    def counted(ids, flags):
        return {"ids": ids + tf.cast(flags, tf.int32), "not_a_number": tf.fill([1], float("nan"))}

    def embed(text):
        length = tf.cast(tf.strings.length(text), tf.float32)
        return {"vectors": tf.stack([length, -length, length / 3], 1)}

    def fill_mask(text):
        masks = tf.strings.length(tf.strings.regex_replace(text, "[^_]", ""))
        width = tf.reduce_max(masks)
        real = tf.sequence_mask(masks, width)[..., None]
        shape = [tf.size(text), width, 2]
        return {
            "tokens": tf.where(real, tf.broadcast_to(["sun", "moon"], shape), ""),
            "probabilities": tf.where(real, tf.broadcast_to([0.75, 0.25], shape), 0.0),
        }

    def same(text):
        return {"text": text}

    def long(text):
        """A loop, of more turns than can be waited for where the text is "endless"."""
        is_endless = tf.reduce_any(tf.equal(text, "endless"))
        turns = tf.where(is_endless, tf.int64.max, 1)
        zero = tf.zeros([], tf.int64)
        (turn,) = tf.while_loop(lambda turn: turn < turns, lambda turn: [turn + 1], [zero])
        return {"turns": tf.fill(tf.shape(text), turn)}

    texts = [tf.TensorSpec([None], tf.string, "text")]
    signatures = {
        "polite": Signature(polite, texts),
        "total": Signature(total, [tf.TensorSpec([None, None], tf.float32, "numbers")]),
        "characters": Signature(characters, texts),
        "scale": Signature(
            scale,
            [tf.TensorSpec([None], tf.float32, "numbers"), tf.TensorSpec([], tf.float32, "factor")],
        ),
        "counted": Signature(
            counted,
            [tf.TensorSpec([None], tf.int32, "ids"), tf.TensorSpec([None], tf.bool, "flags")],
        ),
        "embed": Signature(embed, texts),
        "fill_mask": Signature(fill_mask, texts),
        "same": Signature(same, texts),
        "long": Signature(long, texts),
    }
    return export_saved_model(folder, signatures, max_bytes=2**25)


def signature(path, name):
    """What the SavedModel itself gives."""
    return tf.saved_model.load(path).signatures[name]
