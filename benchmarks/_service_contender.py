"""What `benchmarks.service` compares `kbert-serve` with: the same web server around other code.

`python -m benchmarks._service_contender KIND FOLDER` prints its address and answers `/embed` as
kbert-serve does, until it is killed. Kinds:

- `alone`: the SavedModel's signature called for each request by itself;
- `batched`: the same within `tf.nondifferentiable_batch_function`, TensorFlow's own batching;
- `sentence-transformers`: its `encode` called for each request by itself;
- `fastembed`: likewise its `embed`, on ONNX Runtime, a core for each of two requests: faster than
  both cores for one;
- `infinity`: its engine for sentence-transformers, which makes batches of what waits.

None has limits, checks, deadlines or reloads.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

Answer = Callable[[list[str]], np.ndarray]
WIDTH = 384  # of MiniLM-L6's vectors
MOST = 64  # texts of a batch, as of kbert-serve
WAIT_MICROSECONDS = 1000  # for others to come; kbert-serve does not wait


def open_alone(folder: str) -> tuple[Answer, int]:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  # registers the tokenizer's operations

    loaded = tf.saved_model.load(folder)  # the signature alone would lose its variables
    return lambda texts: loaded.signatures["features"](text=tf.constant(texts))[
        "vectors"
    ].numpy(), 1


def open_batched(folder: str) -> tuple[Answer, int]:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    loaded = tf.saved_model.load(folder)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    @tf.nondifferentiable_batch_function(1, MOST, WAIT_MICROSECONDS, max_enqueued_batches=1000)
    def run(text: Any) -> Any:
        return loaded.signatures["features"](text=text)["vectors"]

    return lambda texts: run(tf.constant(texts)).numpy(), 128  # a call waits in a thread


def open_sentence_transformers(folder: str) -> tuple[Answer, int]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, batch_size=MOST, show_progress_bar=False), 1


def open_fastembed(folder: str) -> tuple[Answer, int]:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="own/model",
        pooling=PoolingType.MEAN,
        normalization=False,
        sources=ModelSource(hf="own/model"),  # not asked: the folder is there
        dim=WIDTH,
        model_file="model.onnx",
    )
    model = TextEmbedding("own/model", specific_model_path=folder, threads=1)
    cores = os.cpu_count() or 1
    return lambda texts: np.stack(list(model.embed(texts, batch_size=MOST))), cores


def open_infinity(folder: str) -> tuple[Answer, int]:
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    arguments = EngineArgs(model_name_or_path=folder, device="cpu", batch_size=MOST)
    engine = AsyncEmbeddingEngine.from_args(arguments)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    wait(engine.astart())
    return lambda texts: np.stack(wait(engine.embed(sentences=texts))[0]), 128


OPENERS = {
    "alone": open_alone,
    "batched": open_batched,
    "sentence-transformers": open_sentence_transformers,
    "fastembed": open_fastembed,
    "infinity": open_infinity,
}


def main(kind: str, folder: str) -> None:
    import orjson
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    answer, threads = OPENERS[kind](folder)
    answer(["a"])
    pool = ThreadPoolExecutor(threads)

    async def embed(request: Any) -> Response:
        texts = orjson.loads(await request.body())["texts"]
        vectors = await asyncio.get_running_loop().run_in_executor(pool, answer, texts)
        body = orjson.dumps({"embeddings": vectors}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    app = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
    # As kbert-serve's: with the protocol named, asyncio sends at once what is small.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # before the address is known
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, http="h11", loop="asyncio", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
