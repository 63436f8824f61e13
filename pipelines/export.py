r"""Exports a model: for TensorFlow Serving, ONNX Runtime, OpenVINO, LiteRT or PyTorch.

  kbert-export --preset=out/preset --output_dir=serving/reviews
  kbert-export --preset=out/preset --output_dir=reviews-onnx --format=onnx --precision=int8
  kbert-export --preset=out/preset --output_dir=reviews-ov --format=openvino --precision=bfloat16
  kbert-export --preset=out/preset --output_dir=reviews-lite --format=litert --widths=64,256
  kbert-export --preset=translator --output_dir=serving/de --beam_width=6 --no_repeat_ngram_size=3

Formats, their inputs, and the extra that each requires:

  savedmodel   text; every task. Written to OUTPUT_DIR/1, then 2, 3, …
  onnx         token ids, rows of any number and length; pip install 'kbert[onnx]'
  openvino     the same; pip install 'kbert[openvino]'
  litert       token ids, one row of a few possible lengths; pip install 'kbert[litert]'
  safetensors  weights, config and tokenizer as Hugging Face's transformers loads them

onnx, openvino and litert support tasks on an encoder: classes, numbers, tags, answers, masks and
embeddings. onnx also supports language models and translators. Their whole decoding loop is in the
model, also in a SavedModel: greedy, or a beam with an option of beams (--beam_width=1 is greedy);
only a SavedModel samples. --output_dir must be new or empty; it gets the model, the tokenizer's
files and export.json, which describes the export.
kbert.export.load_exported(folder).predict(texts) predicts with it. For onnx and openvino the
tokenizer is also written as a graph from texts to rows, if the graph is exact; the program prints
its files, or the reason why there is none.

Precisions: float32 for every format; int8 for all but safetensors; bfloat16 for openvino,
savedmodel and safetensors. A SavedModel in int8 is a quarter as large, but not faster: its weights
are converted to float32 when it is loaded.

Exports to onnx, openvino and litert, and SavedModels in int8 or bfloat16, are checked before they
are kept: they run on ten built-in texts, or on --texts. The program reports the largest difference
from TensorFlow in float32; above --tolerance nothing is written. To measure the effect of 8 bits on
the metric of a task: kbert.export.load_exported(folder).evaluate(data).
"""

from absl import flags

import kbert
from kbert.core import late
from kbert.decoding.options import TextOptions, export_arguments
from kbert.io.paths import Path

from . import command, option_flags
from .task_flags import define_task_module_flag

RUNTIMES = tuple(late.TABLE["runtime"])
PRECISIONS = ("float32", "bfloat16", "int8")


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("preset", None, "Folder of the trained model.")
    define_task_module_flag(with_options=False)
    flags.DEFINE_string("output_dir", None, "Folder to write; see above.")
    flags.DEFINE_enum(
        "format",
        "savedmodel",
        ("savedmodel", *RUNTIMES, "safetensors"),
        "Format to write, see above.",
    )
    flags.DEFINE_enum(
        "precision", "float32", PRECISIONS, "Precision of weights and computation, see above."
    )
    flags.DEFINE_string(
        "texts", None, "File of texts for the check, one per line. Default: ten built-in texts."
    )
    flags.DEFINE_float(
        "tolerance",
        None,
        "Check: largest allowed difference from TensorFlow, relative to the largest number of its "
        "output. Default: 1e-3, for bfloat16 0.1, for int8 0.3.",
        lower_bound=0.0,
    )
    flags.DEFINE_list(
        "widths",
        None,
        "For litert: sequence lengths in tokens. Default: 32, 128 and the task's maximum.",
    )
    # For tasks that generate text; without them the task's `signatures` or `row_export` decide.
    option_flags.define(TextOptions, method=None)
    flags.DEFINE_integer(
        "max_bytes",
        None,
        "For savedmodel: maximum number of bytes of a text in a request. A longer text is "
        "refused, or truncated by a task that truncates texts. Default: 100000.",
        lower_bound=1,
    )
    command.define_ignore_flag()
    flags.mark_flags_as_required(["preset", "output_dir"])


def _export(options: flags.FlagValues) -> None:
    """Exports the model and prints its path.

    For runtimes it also prints the size, the differences from TensorFlow and the tokenizer's files.
    """
    arguments = {"tolerance": options.tolerance, "texts": _lines(options.texts)}
    if options.widths is not None:
        arguments["widths"] = [_number(width) for width in options.widths]
    arguments = {name: value for name, value in arguments.items() if value is not None}
    unchecked = options.format == "savedmodel" and options.precision == "float32"
    unread = unchecked or options.format == "safetensors"
    if (arguments and unread) or ("widths" in arguments and options.format != "litert"):
        raise ValueError(
            f"--texts and --tolerance require --format {', '.join(RUNTIMES)}, or savedmodel in "
            "another precision than float32; --widths requires litert. Received: "
            f"--format={options.format} and {', '.join(f'--{name}' for name in arguments)}"
        )
    if options.max_bytes is not None:
        arguments["max_bytes"] = options.max_bytes
    arguments |= export_arguments(option_flags.given(TextOptions, options))
    task = kbert.tasks.Task.from_preset(options.preset)
    path = task.export(
        options.output_dir, format=options.format, precision=options.precision, **arguments
    )
    print(path)
    if options.format not in RUNTIMES:
        return
    description = kbert.export.folder.read_description(path)
    print(
        f"{description['format']}, {description['precision']}: {description['bytes'] / 1e6:.1f} MB"
    )
    for name, difference in description["differences"].items():
        print(f"{name}: largest difference from TensorFlow {difference:.2g}")
    tokenizer = description["tokenizer"]
    print(f"tokenizer beside the model: {', '.join(tokenizer['beside'])}")
    if "inside" in tokenizer:
        print(f"tokenizer inside, for {tokenizer['needs']}: {', '.join(tokenizer['inside'])}")
    else:
        print(f"tokenizer not inside: {tokenizer['why']}")


def _lines(path: str | None) -> list[str] | None:
    """Returns the lines of a text file; None without a path."""
    return None if path is None else Path(path).read_text(encoding="utf-8").splitlines()


def _number(width: str) -> int:
    """Parses a width in tokens; ValueError if it is not a whole number."""
    if not width.strip().isdecimal():
        raise ValueError(f"--widths must be numbers of tokens. Received: {width!r}")
    return int(width)


PROGRAM = command.Program(
    name="kbert-export",
    doc=__doc__,
    define_flags=define_flags,
    work=_export,
    errors=(TypeError,),
    files=("texts",),
    models=("preset",),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
