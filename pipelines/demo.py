r"""Shows trained models in a browser: type a text and see their predictions.

  kbert-demo
  kbert-demo --preset=out/preset --preset=bert-base-uncased
  kbert-demo --preset=out/preset --lines=sentences.txt --port=8080
  kbert-demo --preset=quickstart/preset --site_dir=site --runtime=onnxruntime-web-1.30.0.tgz

The page shows what each model supports: the most probable tokens for masks as you type, the
attention of every head for your text, whether one sentence follows another, and the predictions of
a fine-tuned model (classes, tags, answers in a context). With --lines it also finds the texts of a
file that are nearest to yours. The default of --preset is quickstart/preset, which kbert-quickstart
makes in five minutes.

The program prints its address and serves until Ctrl-C, by default for this machine only
(127.0.0.1). It is for a few people with a browser; kbert-serve is for programs, and for many
requests at once. Both require pip install 'kbert[serve]'.

With --site_dir the program writes the page as files instead, with the model and ONNX Runtime. Any
web server for static files can serve them, and texts never leave the browser. This requires
pip install 'kbert[onnx]' and the runtime, which npm pack onnxruntime-web@1.30.0 fetches.
`make demo` does both.
"""

from absl import flags

from kbert.io.paths import Path
from kbert.serve import demo
from kbert.serve.demo.settings import DemoOptions

from . import command, option_flags

QUICKSTART = "quickstart/preset"


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(DemoOptions)
    flags.DEFINE_string(
        "site_dir", None, "Write the page and its model to this new folder, instead of serving it."
    )
    flags.DEFINE_string(
        "runtime", None, "With --site_dir: the file that `npm pack onnxruntime-web@1.30.0` fetches."
    )


def _presets(options: flags.FlagValues) -> list[str]:
    """Returns the values of --preset; the quickstart's model if there are none."""
    return options.preset or [QUICKSTART]


def _check(options: flags.FlagValues) -> None:
    """Raises ValueError for flags that do not fit together, and for a missing --preset."""
    if not options.preset and not Path(QUICKSTART).is_dir():
        raise ValueError(
            "--preset must be given: the folder or the name of a trained model. kbert-quickstart "
            "makes one in five minutes, which is then the default. Received: none, and no "
            f"{QUICKSTART}"
        )
    if (options.site_dir is None) != (options.runtime is None):
        raise ValueError(
            "--site_dir and --runtime must be given together. Received: "
            f"--site_dir={options.site_dir}, --runtime={options.runtime}"
        )
    if options.site_dir is not None and len(_presets(options)) > 1:
        raise ValueError(
            f"--site_dir supports only one --preset. Received: {', '.join(options.preset)}"
        )
    _settings(options)


def _settings(options: flags.FlagValues) -> DemoOptions:
    """Returns the settings of the demo that the flags describe."""
    return DemoOptions(**{**option_flags.given(DemoOptions, options), "preset": _presets(options)})


def _demo(options: flags.FlagValues) -> None:
    """Serves the demo until Ctrl-C, or writes it as a site (--site_dir)."""
    if options.site_dir is None:
        demo.serve(_settings(options), lambda address: print(address, flush=True))
        command.end_threads()
        return
    folder = demo.write_site(options.site_dir, _presets(options)[0], options.runtime)
    print(f"{folder}: to view it, run python -m http.server --directory={folder}")


PROGRAM = command.Program(
    name="kbert-demo",
    doc=__doc__,
    define_flags=define_flags,
    work=_demo,
    models=("preset",),
    check=_check,
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
