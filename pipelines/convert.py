r"""Converts a model between formats: config, weights, heads and tokenizer, with a report.

  kbert-convert --from=bert-base-uncased --to=bert --check
  kbert-convert --from=hf:owner/name@v1.0 --to=folder --format=huggingface
  kbert-convert --from=uncased_L-12_H-768_A-12.zip --to=folder --format=huggingface --check
  kbert-convert --from=runs/preset --to=folder --format=huggingface --architecture=roberta
  kbert-convert --from=roberta-base --to=long --window=512 --max_positions=4096

Formats it reads, recognised by the files:

  a name on the hub        "bert-base-uncased", or hf:owner/name, optionally with @revision
  a Hugging Face folder    config.json and model.safetensors, pytorch_model.bin, tf_model.h5 or
                           flax_model.msgpack; pickles are never run
  a fairseq folder         model.pt of RoBERTa or XLM-R
  a KerasHub folder        config.json and model.weights.h5
  a Google folder or zip   *_config.json and *.ckpt.*, TensorFlow 1
  a kbert folder           kbert.json and model.safetensors

The report lists every weight with its shape, and everything that the target format cannot store.
With --check, both models are loaded from their folders and run on the same random inputs, with
every head that both have. Each model runs in the library of its format, if that is installed. A
difference above the printed tolerance ends the program with exit code 1. Nothing is overwritten:
--to must be a new or empty folder.

--window converts an encoder to sliding-window attention for long sequences, as Longformer was made
from RoBERTa. Global tokens get separate projections, which begin as copies of the present ones.
With --max_positions the encoder also gets more positions, which repeat the present ones. Then
pretrain it further on long sequences (kbert-pretrain --init_preset), and convert it with --window
once more: masked language modelling does not train the projections of global tokens, so they are
copied again.
"""

import sys

from absl import flags

import kbert
from kbert import conversion

from . import command


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("from", None, "Model to read: a folder, zip file or name, see above.")
    flags.DEFINE_string("to", None, "Folder to write, new or empty.")
    flags.DEFINE_enum("format", "kbert", kbert.configs.EncoderConfig.FORMATS, "Format to write.")
    flags.DEFINE_string(
        "architecture",
        None,
        "Architecture to write in the other library, such as bert or roberta. Default: inferred "
        "from the config.",
    )
    flags.DEFINE_string("revision", None, "Branch, tag or commit of a repository on the hub.")
    flags.DEFINE_boolean(
        "strict", True, "Refuse tensors that kbert does not support; --nostrict skips them."
    )
    flags.DEFINE_integer(
        "window",
        None,
        "Convert to sliding-window attention: number of tokens that each token attends to, half "
        "of them on either side. Default: attention is unchanged.",
        lower_bound=2,
    )
    flags.DEFINE_integer(
        "max_positions",
        None,
        "With --window: new maximum sequence length. Default: unchanged.",
        lower_bound=1,
    )
    flags.DEFINE_boolean("check", False, "Run both models on random inputs and compare.")
    command.define_ignore_flag()
    flags.mark_flags_as_required(["from", "to"])


def _convert(options: flags.FlagValues) -> None:
    """Converts the model, prints the report and, with --check, compares both models."""
    report = conversion.convert(
        options["from"].value,
        options.to,
        format=options.format,
        architecture=options.architecture,
        revision=options.revision,
        strict=options.strict,
        window=options.window,
        max_positions=options.max_positions,
    )
    print(report)
    checks = conversion.check(report.source, report.target) if options.check else []
    for check in checks:
        print(f"check: {check}")
    if not all(check.passed for check in checks):
        sys.exit("kbert-convert: the converted model does not compute the same as the source.")


PROGRAM = command.Program(
    name="kbert-convert",
    doc=__doc__,
    define_flags=define_flags,
    work=_convert,
    models=("from",),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
