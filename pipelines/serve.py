r"""Serves exported models over HTTP, and over gRPC: texts of many requests are computed together.

  kbert-serve --model=reviews=serving/reviews
  kbert-serve --model=reviews=serving/reviews --model=vectors=serving/vectors --host=0.0.0.0
  kbert-serve --model=reviews=serving/reviews/3 --port=8501 --grpc_port=8500
  kbert-serve --model=reviews=serving/reviews --tls_certificate=all.pem --tls_key=key.pem \
      --token_file=token

Models are SavedModels: --export_dir of the other programs, kbert-export, or any whose signatures
take arrays; or exports of classifiers, regressors, taggers and embedders for ONNX Runtime
(kbert-export --format=onnx). pip install 'kbert[serve]'. A request, in the form of TensorFlow
Serving's REST API:

  curl http://127.0.0.1:8501/v1/models/reviews:predict \
      -d '{"instances": ["a visually stunning rumination on love"]}'

What answers:

  POST /v1/models/NAME:predict               also /v1/models/NAME/versions/3:predict
  POST /embed, /fill_mask                    {"texts": […]}, where a model can do it
  GET  /v1/models/NAME, …/metadata           versions and signatures
  GET  /health, /live                        ready for requests; alive, also while loading
  GET  /metrics                              metrics in the text form of Prometheus

From Python: kbert.Client("http://127.0.0.1:8501").predict("reviews", texts).

A new version folder is loaded and takes over without losing a request (--poll_seconds); some may
be served at once (--num_versions). While a batch is computed what arrives waits, up to
--max_waiting texts; then 429. After SIGTERM or Ctrl-C what was accepted is answered within
--stop_seconds; the rest is refused. The addresses are printed once requests are taken.
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
