"""Loads a SavedModel as TensorFlow Serving does and answers requests; started in a fresh process.

Arguments: the model's path, and a JSON list of [signature, {input: strings}]. Prints JSON answers.
Nothing of kbert is imported: only tensorflow, and tensorflow_text for its operations.
"""

import json
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401


def plain(value):
    decode = lambda x: [decode(i) for i in x] if isinstance(x, list) else x.decode()  # noqa: E731
    return decode(value.tolist()) if value.dtype == object else value.tolist()


def main(path, requests):
    answers = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        for name, inputs in requests:
            entry = meta.signature_def[name]
            feed = {entry.inputs[key].name: value for key, value in inputs.items()}
            values = session.run({key: out.name for key, out in entry.outputs.items()}, feed)
            answers.append({key: plain(value) for key, value in values.items()})
    assert not [m for m in sys.modules if m.split(".")[0] == "kbert"]
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
