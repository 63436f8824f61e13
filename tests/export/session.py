"""Asks a SavedModel as TensorFlow Serving does: through the session loader.

As a program, started in a fresh process: arguments are the model's path and a JSON list of
[signature, {input: strings}]; it prints JSON answers. It imports nothing of kbert, only
tensorflow, and tensorflow_text for its operations.
"""

import json
import sys

if __name__ == "__main__":
    # TensorFlow imports these where they are, for other things, and half its time goes into them.
    sys.modules.update(dict.fromkeys(("jax", "pandas", "sklearn")))

import tensorflow as tf
import tensorflow_text  # noqa: F401


def ask(path, *requests):
    """Answers of one loaded session to requests (signature, {input: values})."""
    answers = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        for name, inputs in requests:
            entry = meta.signature_def[name]
            feed = {entry.inputs[key].name: value for key, value in inputs.items()}
            outputs = {key: output.name for key, output in entry.outputs.items()}
            answers.append(session.run(outputs, feed))
    return answers


def ask_json(path, *requests):
    """The same answers as lists, numbers and strings."""
    answers = [
        {name: value.tolist() for name, value in answer.items()} for answer in ask(path, *requests)
    ]
    return json.loads(json.dumps(answers, default=bytes.decode))


def main(path, requests):
    answers = ask_json(path, *requests)
    assert not [module for module in sys.modules if module.split(".")[0] == "kbert"]
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
