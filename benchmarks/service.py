"""`kbert-serve` under load: MiniLM-L6's vectors for sentences of mixed lengths, by HTTP.

- `speed`: connections that each send a sentence as soon as they have the vector of the one before:
  requests a second, and milliseconds that 50 and 99 of 100 take. Beside it the same SavedModel
  called for each request by itself, the same in TensorFlow's own batching, and
  sentence-transformers on the same weights, and fastembed (ONNX Runtime) and infinity (torch) where
  a Python that has them is given, each behind the same web server, in a process of its own. They
  take turns; each number is the median of the rounds.
- `soak`: minutes of load with everything that happens to a service at once: requests that are
  wrong, too large or broken off, a new version every 20 seconds (`--exports_every`, 0 = never).
  Reports answers that were not as they should be, and how memory grew, from the first quarter to
  the last.

`python -m benchmarks.service [speed] [soak] [--data FOLDER] [--connections 1 8 32 128]
[--seconds 10] [--rounds 3] [--minutes 10] [--contender NAME …] [--fastembed PYTHON]
[--infinity PYTHON]`

`--data` holds `glue/`, for SST-2's sentences; else a few of ours.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._data import SST2, add_data
from benchmarks._experiments import parser, print_table

OURS = "kbert-serve"
ONNX = {f"{OURS}, ONNX {precision}": precision for precision in ("float32", "int8")}
# They run in a Python of their own, and need orjson, uvicorn and starlette there.
ELSEWHERE = ("fastembed", "infinity")
CONTENDERS = (OURS, *ONNX, "alone", "batched", "sentence-transformers", *ELSEWHERE)
_HEADER_END = b"\r\n\r\n"


def sentences(data: str | None) -> list[str]:
    """SST-2's dev set, or ours, in an order that mixes lengths."""
    from benchmarks._fine_tuning_runs import RUNS
    from kbert.export.task import TEXTS

    texts = list(TEXTS) if data is None else list(RUNS["sst2"].read(Path(data))[1]["text"])
    random.Random(0).shuffle(texts)
    return texts


def export(folder: Path) -> tuple[str, str]:
    """MiniLM-L6 as a SavedModel that gives means of tokens, and for sentence-transformers."""
    import kbert
    from benchmarks._fine_tuning_runs import weights_folder
    from kbert.export import export_features

    encoder = kbert.Encoder.from_preset(weights_folder())
    tokenizer = kbert.load_tokenizer(weights_folder())
    path = export_features(folder / "vectors", encoder, tokenizer, max_length=128)
    peer = folder / "peer"
    shutil.copytree(weights_folder(), peer)
    # Without its last module, the scaling to length 1, which the SavedModel does not have.
    modules = json.loads((peer / "modules.json").read_text())
    kept = [module for module in modules if not module["type"].endswith("Normalize")]
    (peer / "modules.json").write_text(json.dumps(kept))
    return path, os.fspath(peer)


class Server:
    """A process that prints its address."""

    def __init__(self, command: Sequence[str], python: str = sys.executable) -> None:
        self.process = subprocess.Popen([python, "-m", *command], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError(f"{' '.join(command)} ended: {self.process.wait()}")

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.address}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


def start(
    name: str, path: str, peer: str, more: Sequence[str] = (), python: str | None = None
) -> Server:
    if name == OURS or name in ONNX:
        folder = write_export(peer, ONNX[name]) if name in ONNX else path
        return Server(["pipelines.serve", f"--model=vectors={folder}", "--port=0", *more])
    command = ["benchmarks._service_contender", name]
    if name in ELSEWHERE:
        assert python is not None
        return Server([*command, write_onnx(peer) if name == "fastembed" else peer], python)
    return Server([*command, peer if name == "sentence-transformers" else path])


def write_export(peer: str, precision: str) -> str:
    """The model of sentence-transformers as kbert exports it to ONNX Runtime."""
    import kbert

    task = kbert.tasks.TextEmbedder.from_preset(peer)
    return task.export(f"{peer}-{precision}", format="onnx", precision=precision)


def write_onnx(folder: str) -> str:
    """Adds the model's states as an ONNX file, which fastembed pools, to the folder."""
    import torch
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(names, values, strict=True))).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ones = torch.ones(2, 8, dtype=torch.int64)
    torch.onnx.export(
        States(),
        (ones, ones, 0 * ones),
        f"{folder}/model.onnx",
        input_names=names,
        output_names=["states"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "states"]},
        dynamo=False,
    )
    return folder


def request_of(path: str, content: Any) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """A connection that is kept, and does little more than bytes: the load is not to be the
    load's own."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self._place = (parts.hostname, parts.port)
        self._reader: Any = None
        self._writer: Any = None

    async def ask(self, content: bytes) -> tuple[int, bytes]:
        """Status and body."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._place)
        self._writer.write(content)
        head = await self._reader.readuntil(_HEADER_END)
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert length, head
        body = await self._reader.readexactly(int(length[1]))
        if b"connection: close" in head.lower():
            self.close()
        return int(head.split(b" ", 2)[1]), body

    async def leave(self, content: bytes) -> None:
        """Sends and does not wait."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._place)
        self._writer.write(content)
        await self._writer.drain()
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


# Speed


async def load(
    address: str, texts: Sequence[str], connections: int, seconds: float
) -> tuple[float, list[float]]:
    """Requests a second, and the milliseconds of each."""
    bodies = itertools.cycle([request_of("/embed", {"texts": [text]}) for text in texts])
    milliseconds: list[float] = []
    begin = time.perf_counter()

    async def client() -> None:
        connection = Connection(address)
        while (start := time.perf_counter()) < begin + seconds:
            status, body = await connection.ask(next(bodies))
            if status != 200:
                raise RuntimeError(f"{address} answered {status}: {body[:200]!r}")
            milliseconds.append(1e3 * (time.perf_counter() - start))
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return len(milliseconds) / (time.perf_counter() - begin), milliseconds


def check_equal(servers: dict[str, Server], texts: Sequence[str]) -> None:
    """The vectors' directions are the same everywhere, before anybody is timed.

    infinity scales its vectors to length 1.
    """
    body, found = json.dumps({"texts": texts}).encode(), {}
    for name, server in servers.items():
        with urllib.request.urlopen(f"{server.address}/embed", body) as answer:
            vectors = np.array(json.load(answer)["embeddings"])
            found[name] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    first = next(iter(found.values()))
    for name, vectors in found.items():
        print(f"{name}: largest difference {np.abs(vectors - first).max():.1g}")


def speed(flags: Any, folder: Path) -> None:
    """Requests a second and their latency, of one sentence each."""
    path, peer = export(folder)
    texts = sentences(flags.data)
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in flags.contender:
            servers[name] = start(name, path, peer, python=vars(flags).get(name))
            stack.callback(servers[name].end)
        compare(servers, texts, flags)


def compare(servers: dict[str, Server], texts: Sequence[str], flags: Any) -> None:
    check_equal(servers, texts[:32])
    for server in servers.values():
        asyncio.run(load(server.address, texts, 8, min(2.0, flags.seconds)))
    rows = []
    for connections in flags.connections:
        rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in servers}
        batches = 0.0
        for _ in range(flags.rounds):
            for name, server in servers.items():
                before = _batch_sizes(server) if name == OURS else (0.0, 0.0)
                rate, times = asyncio.run(load(server.address, texts, connections, flags.seconds))
                rates[name].append((rate, *np.percentile(times, (50, 99))))
                if name == OURS:
                    count, total = (
                        x - y for x, y in zip(_batch_sizes(server), before, strict=True)
                    )
                    batches = total / max(count, 1)
        for name, found in rates.items():
            rate, half, most = (statistics.median(column) for column in zip(*found, strict=True))
            size = f"{batches:.1f}" if name == OURS else ""
            rows.append((connections, name, f"{rate:.0f}", f"{half:.1f}", f"{most:.1f}", size))
    header = ("connections", "server", "requests/s", "p50, ms", "p99, ms", "texts a batch")
    print_table(header, rows)


def _batch_sizes(server: Server) -> tuple[float, float]:
    return server.metric("kbert_batch_texts_count"), server.metric("kbert_batch_texts_sum")


# Soak


async def soak_load(
    server: Server, texts: Sequence[str], publish: Callable[[], None], flags: Any
) -> tuple[dict[str, int], list[str], list[float]]:
    """What was sent, what was answered wrongly, and memory in MB once a second."""
    end = time.monotonic() + 60 * flags.minutes
    counts: dict[str, int] = {}
    wrong: list[str] = []
    memory: list[float] = []
    predict = "/v1/models/vectors:predict"
    kinds: dict[str, tuple[bytes, int]] = {
        "no JSON": (request_of(predict, b"\xff{"), 400),
        "another type": (request_of(predict, {"instances": [1]}), 400),
        "no such model": (request_of("/v1/models/x:predict", {"instances": ["a"]}), 404),
        "too many texts": (request_of("/embed", {"texts": ["a"] * 1000}), 413),
        "a nest": (request_of("/embed", b"[" * 100_000), 400),
        "1.5 MB": (request_of("/embed", b" " * 1_500_000), 413),
    }

    async def client(number: int) -> None:
        dice, connection = random.Random(number), Connection(server.address)
        while time.monotonic() < end:
            draw = dice.random()
            some = dice.sample(list(texts), dice.choice((1, 1, 1, 4, 16)))
            kind, (content, wanted) = "texts", (request_of("/embed", {"texts": some}), 200)
            try:
                if draw < 0.02:
                    kind = "broken off"
                    await connection.leave(content[: dice.randrange(len(content))])
                elif draw < 0.04:
                    kind = "left"
                    await connection.leave(content)
                else:
                    if draw < 0.1:
                        kind = dice.choice(list(kinds))
                        content, wanted = kinds[kind]
                    status, body = await connection.ask(content)
                    good = status in (wanted, 429)
                    if status == 429:
                        kind = "told to come again"
                        await asyncio.sleep(0.5)
                    elif good and wanted == 200:
                        good = len(json.loads(body)["embeddings"]) == len(some)
                    if not good:
                        wrong.append(f"{kind}: {status}, {body[:100]!r}")
            except (OSError, asyncio.IncompleteReadError) as error:
                connection.close()
                # A body that is refused before it is read may cost the connection.
                if kind != "1.5 MB":
                    wrong.append(f"{kind}: {error!r}")
            counts[kind] = counts.get(kind, 0) + 1

    async def watch() -> None:
        last = time.monotonic()
        while time.monotonic() < end:
            await asyncio.sleep(1)
            value = await asyncio.to_thread(server.metric, "process_resident_memory_bytes")
            memory.append(value / 1e6)
            if flags.exports_every and time.monotonic() - last > flags.exports_every:
                last = time.monotonic()
                await asyncio.to_thread(publish)

    await asyncio.gather(watch(), *(client(number) for number in range(32)))
    return counts, wrong, memory


def soak(flags: Any, folder: Path) -> None:
    """Errors and memory after minutes of load, mistakes, broken connections and reloads."""
    path, _ = export(folder)
    base = Path(path).parent
    numbers = itertools.count(2)

    def publish() -> None:
        number = next(numbers)
        shutil.copytree(path, base / f".{number}")
        os.rename(base / f".{number}", base / str(number))
        if number > 3:
            shutil.rmtree(base / str(number - 2))

    server = start(OURS, os.fspath(base), "", ["--poll_seconds=1"])
    try:
        work = soak_load(server, sentences(flags.data), publish, flags)
        counts, wrong, memory = asyncio.run(work)
        version = server.metric("kbert_newest_version")
    finally:
        status = server.end()
    quarter = max(len(memory) // 4, 1)
    print_table(("sent", "number"), [*sorted(counts.items()), ("in all", sum(counts.values()))])
    first, last = (statistics.mean(x) for x in (memory[:quarter], memory[-quarter:]))
    rows = [
        ("wrong answers", len(wrong)),
        ("newest version", f"{version:.0f}"),
        ("memory, first quarter, MB", f"{first:.0f}"),
        ("memory, last quarter, MB", f"{last:.0f}"),
        ("exit status after SIGTERM", status),
    ]
    print_table(("found", ""), rows)
    for text in wrong[:20]:
        print(text)


PARTS = {"speed": speed, "soak": soak}


def main() -> None:
    arguments = parser("service", __doc__)
    add_data(arguments, SST2, required=False)
    arguments.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32, 128])
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--minutes", type=float, default=10.0, help="of the soak")
    arguments.add_argument("--exports_every", type=float, default=20.0, help="seconds, of the soak")
    arguments.add_argument("--contender", nargs="+", choices=CONTENDERS, help="default: all")
    for name in ELSEWHERE:
        arguments.add_argument(f"--{name}", metavar="PYTHON", help="one that has it, and orjson")
    flags = arguments.parse_args()
    absent = {name for name in ELSEWHERE if vars(flags)[name] is None}
    for name in absent.intersection(flags.contender or ()):
        arguments.error(f"the contender {name} needs --{name}=PYTHON")
    flags.contender = flags.contender or [name for name in CONTENDERS if name not in absent]
    names = flags.names or ["speed"]
    if unknown := set(names) - set(PARTS):
        arguments.error(f"names are {', '.join(PARTS)}. Received: {', '.join(sorted(unknown))}")
    for name in names:
        print(f"\n{name}: {PARTS[name].__doc__}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](flags, Path(folder))


if __name__ == "__main__":
    main()
