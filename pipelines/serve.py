r"""Serves exported models over HTTP, and over gRPC: texts of many requests are computed together.

  kbert-serve --model=reviews=serving/reviews
  kbert-serve --model=reviews=serving/reviews --model=vectors=serving/vectors --host=0.0.0.0
  kbert-serve --model=reviews=serving/reviews/3 --port=8501 --grpc_port=8500
  kbert-serve --model=reviews=serving/reviews --tls_certificate=all.pem --tls_key=key.pem \
      --token_file=token

A model is a SavedModel (from kbert-export, --export_dir of the other programs, or any other with
arrays as inputs), or an export of a classifier, regressor, tagger or embedder to a runtime, such as
kbert-export --format=onnx. The program requires pip install 'kbert[serve]'. Requests have the form
of TensorFlow Serving's REST API:

  curl http://127.0.0.1:8501/v1/models/reviews:predict \
      -d '{"instances": ["a visually stunning rumination on love"]}'

Routes:

  POST /v1/models/NAME:predict               also /v1/models/NAME/versions/3:predict
  POST /embed, /fill_mask                    {"texts": […]}, if a model supports it
  GET  /v1/models/NAME, …/metadata           versions and signatures
  GET  /health, /live                        ready for requests; alive, also while loading
  GET  /metrics                              metrics in the text form of Prometheus

From Python: kbert.Client("http://127.0.0.1:8501").predict("reviews", texts).

A new version folder is loaded and replaces the former version without losing a request
(--poll_seconds); --num_versions serves several versions at once. While a batch is computed, new
requests wait, up to --max_waiting texts; further ones get status 429. After SIGTERM or Ctrl-C the
accepted requests are answered within --stop_seconds; others are refused. The addresses are printed
as soon as requests are accepted.
"""

import gc

from absl import flags

from kbert import serve
from kbert.serve.service.settings import ServiceOptions

from . import command, option_flags


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(ServiceOptions)
    flags.mark_flag_as_required("model")


def _needs_tensorflow(options: flags.FlagValues) -> bool:
    """Returns whether the models of --model need TensorFlow."""
    return serve.needs_tensorflow(option_flags.read(ServiceOptions, options))


def _serve(options: flags.FlagValues) -> None:
    """Serves the models until SIGTERM or Ctrl-C."""
    # The garbage of a retired model version is collected. This takes a twentieth of a second if the
    # objects that exist now, mostly TensorFlow's, are frozen and so not traversed.
    gc.collect()
    gc.freeze()
    serve.serve(option_flags.read(ServiceOptions, options), _print_addresses)
    command.end_threads()


def _print_addresses(addresses: list[str]) -> None:
    for address in addresses:
        print(address, flush=True)


PROGRAM = command.Program(
    name="kbert-serve",
    doc=__doc__,
    define_flags=define_flags,
    work=_serve,
    needs_tensorflow=_needs_tensorflow,
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
