"""`prepare_corpus`: text of any size to a folder of shards, at constant memory, resumable.

There are two passes. The first splits the text into chunks of whole documents. Each chunk becomes a
*spill*: token ids of documents, sorted by a hash of their content. The second pass divides the
range of hashes into shards and gathers each shard from all spills. Since a shard is a range of
hashes, sorted by hash:

- the output does not depend on the number of workers, the order of the sources or interruptions;
- equal documents meet in one shard, and only one of them is kept;
- the held-out text is also a range of hashes.

    output_dir/
        manifest.json           written last: a folder without it is not finished
        train-00000-of-00004.tfrecord, .index.npy, …
        held_out-00000-of-00001.tfrecord, .index.npy
        vocab.txt, …            files of the tokenizer
        plan.json               settings and sources, to recognise the same work again
        work/                   spills; removed at the end. If output_dir has a scheme (gs://…),
                                it is in kbert's cache folder, since spills are memory-mapped
"""

import collections
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import logging

from kbert.core.types import PathLike
from kbert.data.corpus import chunks as text_chunks, manifest, records, shards as shard_files, spill
from kbert.data.corpus.manifest import Manifest, Shard, Split, read_manifest
from kbert.data.corpus.vocabulary import check_kind, save_tokenizer
from kbert.data.corpus.workers import Workers
from kbert.io import atomic, fingerprints
from kbert.io.outputs import changes, read_note, write_note
from kbert.io.paths import Path, exists, remove_tree
from kbert.io.progress import Progress
from kbert.text import open_sources, source as text_source
from kbert.text.source import Source
from kbert.tokenizers.base import Tokenizer
from kbert.version import __version__

PLAN_FILE = "plan.json"
HELD_OUT_SHARE = 0.01
# Key in a plan. Unfinished work of another version is restarted; a finished corpus is kept.
_VERSION = "kbert_version"
_WORK_FOLDER = "work"


def prepare_corpus(
    sources: Any,
    output_dir: PathLike,
    tokenizer: Tokenizer,
    *,
    held_out_share: float = HELD_OUT_SHARE,
    num_workers: int = 1,
    field: str = "text",
    on_bad_utf8: str = "fail",
    beam_flags: Sequence[str] | None = None,
) -> Manifest:
    """Turns text into shards of tokenised documents, once, for any number of training runs.

    If it is killed, the same call resumes, and the files have the same bytes as those of an
    uninterrupted run. For a finished folder it returns at once.

    Args:
        sources: files, patterns, `tfds:…`, `docs:` or tables in memory, such as a frame or a
            `datasets.Dataset`; see `kbert.text.open_sources`. Or texts with
            their translations from `kbert.text.read_pairs(…).aligned_documents()`, one document per
            pair, for `pretraining_dataset(segments="aligned")`.
        output_dir: folder for the shards; created if needed.
        tokenizer: tokenizer that makes the ids; it is saved in the folder too.
        held_out_share: share of the documents, chosen by a hash of their content, that go to the
            split "held_out" instead of "train".
        num_workers: number of processes; 0 or 1 uses only the current one. With 2 or more, a script
            needs the `if __name__ == "__main__":` guard of multiprocessing.
        field: name of the column or field with the text, see `kbert.text.open_sources`.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.
        beam_flags: flags of Apache Beam, such as "--runner=FlinkRunner", to run the work on Beam
            with any number of machines. All of them must be able to read the sources and write to
            `output_dir`. The output has the same bytes. Needs the extra `[beam]`. None runs on
            this machine without Beam.

    Returns:
        The manifest of the folder.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: bad input, or the folder contains another corpus.
        OSError: the disk is full or cannot be written; finished work is kept.
        ImportError: `beam_flags` is given, and Apache Beam is not installed.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/two.txt", "w") as file:
        ...     _ = file.write("It rained. We stayed in.\\n\\nThe sun shone.\\n")
        >>> words = "it rained we stayed in the sun shone .".split()
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *words])
        >>> corpus = prepare_corpus(f"{folder}/*.txt", f"{folder}/shards", tokenizer)
        >>> corpus.splits["train"].documents, corpus.splits["train"].tokens
        (2, 11)
    """
    if not 0 <= held_out_share < 1:
        raise ValueError(
            f"held_out_share must be at least 0 and below 1. Received: {held_out_share}"
        )
    if num_workers < 0:
        raise ValueError(f"num_workers must be 0 or more. Received: {num_workers}")
    if not hasattr(tokenizer, "vocabulary_size"):
        raise ValueError(
            "The tokenizer must have a vocabulary, whose ids are stored in the shards. Received: "
            f"a {type(tokenizer).__name__}"
        )
    opened = open_sources(sources, field=field, on_bad_utf8=on_bad_utf8)
    _check_aligned(opened, tokenizer)
    plan = make_plan(opened, tokenizer, held_out_share, on_bad_utf8)
    output_dir = os.fspath(output_dir)
    with atomic.only_one(output_dir):
        # Beam's workers on other machines cannot access a local folder. They need no local work
        # folder either, since they write no spills.
        work_root = output_dir if beam_flags is not None else atomic.stand_in(output_dir)
        work = os.path.join(work_root, _WORK_FOLDER)
        finished = _finished(output_dir, work, plan)
        if finished:
            return finished
        if beam_flags is not None:
            from kbert.data.corpus import beam

            run_pipeline = beam.pipeline_runner(list(beam_flags))
        job = _Preparation(opened, output_dir, work, tokenizer, plan)
        try:
            if beam_flags is not None:
                return job.finish(job.write_on_beam(run_pipeline))
            with Workers(tokenizer, num_workers) as workers:
                spills = job.write_spills(workers)
                job.check_two_documents(spills)
                shards = job.write_shards(workers, spills)
            return job.finish(shards)
        except BaseException:
            job.abandon()
            raise


def make_plan(
    sources: list[Source],
    tokenizer: Tokenizer,
    held_out_share: float = HELD_OUT_SHARE,
    on_bad_utf8: str = "fail",
) -> dict:
    """Returns all settings and source identities that determine the bytes of the output.

    Equal plans give equal shards. The result is a dict for JSON. The arguments are those of
    `prepare_corpus`, with open sources: tokenizer that makes the ids, share of the documents that
    are held out, and "fail" or "replace" for invalid UTF-8.
    """
    settings = {
        _VERSION: __version__,
        "format_version": manifest.FORMAT_VERSION,
        "tokenizer": {"type": type(tokenizer).__name__, **tokenizer.settings},
        "vocabulary_sha256": tokenizer.checksum,
        "held_out_share": held_out_share,
        "on_bad_utf8": on_bad_utf8,
        "block_tokens": records.BLOCK_TOKENS,
        "max_document_bytes": text_source.MAX_DOCUMENT_BYTES,
    }
    if sources[0].aligned:
        settings["aligned"] = True
    return {"settings": settings, "sources": [source.identity() for source in sources]}


def _check_aligned(sources: list[Source], tokenizer: Tokenizer) -> None:
    """Raises ValueError if only some sources have translations, or the tokenizer has no "sep"."""
    names = [source.name for source in sources if source.aligned]
    if names and len(names) < len(sources):
        raise ValueError(
            "A corpus must have translations for all texts or for none: prepare two corpora and "
            f"combine them in a mixture. Received: {len(sources)} sources, {len(names)} of them "
            f"with translations, such as {names[0]}"
        )
    if names and tokenizer.sep_id is None:
        raise ValueError(
            "Texts with translations require a tokenizer with a separator token. Received: a "
            "tokenizer without one"
        )


def _finished(output_dir: str, work: str, plan: dict) -> Manifest | None:
    """Returns the manifest if `output_dir` already contains the result of this plan, else None.

    A finished corpus needs no work folder, so `work` is removed. Another corpus in `output_dir`
    raises ValueError.
    """
    if not exists(os.path.join(output_dir, manifest.FILE_NAME)):
        return None
    differing = _differences(_read_plan(output_dir), plan)
    if differing:
        raise ValueError(
            f"{output_dir} contains a corpus that was prepared with other settings or sources; "
            f"choose another folder or remove that corpus. Differing: {differing}"
        )
    remove_tree(work)
    logging.info("%s is prepared already", output_dir)
    return read_manifest(output_dir)


def _read_plan(output_dir: str) -> dict | None:
    return read_note(os.path.join(output_dir, PLAN_FILE), "The plan of a corpus")


def _differences(old: dict | None, new: dict) -> list[str]:
    """Lists in words how two plans of a corpus differ; [] if they do not.

    `old` is the plan in the folder, None without one; `new` is the present one.
    """
    if old is None:
        return ["no plan.json"]
    settings = {name: x for name, x in new["settings"].items() if name != _VERSION}
    differences = changes(old["settings"], settings)
    if old["sources"] != new["sources"]:
        differences.append("the sources, or files in them that have changed since")
    return differences


class _Preparation:
    """One run of `prepare_corpus`, with both passes, in a folder that is locked for it.

    `work` is the folder of the spills and of the notes on finished shards; `plan` is from
    `make_plan`. Unfinished work of other settings is removed.
    """

    def __init__(
        self, sources: list[Source], output_dir: str, work: str, tokenizer: Tokenizer, plan: dict
    ) -> None:
        self.sources = sources
        self.output_dir = output_dir
        self.tokenizer = tokenizer
        self.settings = settings = plan["settings"]
        self.held_out_share = settings["held_out_share"]
        self.settings_text = json.dumps(settings, sort_keys=True)
        self.dtype = records.token_dtype(tokenizer.vocabulary_size)
        self.work = work
        check_kind(output_dir, tokenizer.kind)
        old_plan = _read_plan(output_dir)
        if old_plan is not None and old_plan["settings"] != settings:
            logging.info("Removing unfinished work with other settings: %s", old_plan["settings"])
            remove_tree(self.work)
        with atomic.naming(self.work):
            Path(self.work).mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(self.output_dir)
        atomic.remove_leftovers(self.work)
        write_note(os.path.join(output_dir, PLAN_FILE), plan)

    def write_spills(self, workers: Workers) -> list[str]:
        """Runs the first pass, over the text, in `workers`.

        Returns the name of the file (spill) with the tokenised documents of each chunk of text.
        """
        names: list[str] = []

        def jobs() -> Iterator[tuple]:
            for chunk in text_chunks.chunks(self.sources):
                names.append(chunk.name(self.settings_text))
                yield os.path.join(self.work, names[-1]), chunk, self.dtype

        documents = text_bytes = 0
        total = sum(source.size for source in self.sources)
        with Progress("tokenizing", total, "B") as bar:
            for progress in workers.run(text_chunks.write_spill, jobs()):
                documents += progress.documents
                text_bytes += progress.text_bytes
                bar.show(progress.consumed, documents, text_bytes)
        return names

    def check_two_documents(self, names: list[str]) -> None:
        """Raises ValueError unless the train split will have two different documents.

        `names` are the file names of the spills, which are removed before the error.
        """
        first = min(
            plan.first
            for plan in shard_files.plan_shards(1, self.held_out_share)
            if plan.split == "train"
        )
        hashes: set[tuple[int, int]] = set()
        for name in names:
            hashes |= spill.Spill(os.path.join(self.work, name), self.dtype).two_hashes(first)
            if len(hashes) >= 2:
                return
        for name in names:  # a later run cannot use them
            atomic.remove(os.path.join(self.work, name))
        self._refuse(len(hashes))

    def write_shards(self, workers: Workers, names: list[str]) -> list[tuple[str, Shard]]:
        """Runs the second pass, over the files (spills) of the first, in `workers`.

        Returns (split, shard) for each shard with documents, in order.
        """
        self.counts: collections.Counter[str] = collections.Counter()
        for name in names:
            self.counts.update(spill.Spill(os.path.join(self.work, name), self.dtype).counts)
        plans = shard_files.plan_shards(self.counts["text_bytes"], self.held_out_share)
        distinct = sorted(set(names))
        key = fingerprints.blake2b(["\n".join([self.settings_text, *distinct])])
        block_tokens = self.settings["block_tokens"]
        jobs = [(self.output_dir, self.work, plan, distinct, block_tokens, key) for plan in plans]
        shards = []
        documents = 0
        with Progress("writing shards", len(jobs), " shards") as bar:
            results = workers.run(shard_files.write_shard, jobs)
            for num_done, (plan, shard) in enumerate(zip(plans, results, strict=True), start=1):
                if shard:
                    shards.append((plan.split, shard))
                    documents += shard.documents
                bar.show(num_done, documents)
        return shards

    def write_on_beam(self, run_pipeline: Callable) -> list[tuple[str, Shard]]:
        """Runs both passes as one pipeline, with the function from `beam.pipeline_runner`.

        Returns (split, shard) for each shard with documents, in order. Fewer than two documents to
        train on raise ValueError.
        """
        identities = json.dumps([source.identity() for source in self.sources], sort_keys=True)
        key = fingerprints.blake2b([f"{self.settings_text}\n{identities}"])
        counts, shards = run_pipeline(
            self.sources,
            self.tokenizer,
            self.output_dir,
            self.work,
            held_out_share=self.held_out_share,
            block_tokens=self.settings["block_tokens"],
            key=key,
        )
        self.counts = collections.Counter(counts)
        for name in ("cut_documents", "replaced_characters"):  # counted by Beam's workers
            setattr(self.sources[0], name, counts[name])
        train_documents = sum(shard.documents for split, shard in shards if split == "train")
        if train_documents < 2:
            files = list(Path(self.work).iterdir())
            for _, shard in shards:
                files += [Path(self.output_dir, x) for x in (shard.file, shard.index)]
            for path in files:  # a later run cannot use them
                atomic.remove(path)
            self._refuse(train_documents)
        return shards

    def _refuse(self, found: int) -> NoReturn:
        """Raises ValueError: only `found` documents are left to train on, and two are needed."""
        raise ValueError(
            "A corpus must have two different documents to train on, because some objectives "
            "draw from a second document. Separate the documents of a text file (its chapters, "
            f"for example) by blank lines. Received: {found} besides the held-out share of "
            f"{self.held_out_share}, in {[source.name for source in self.sources[:5]]}"
        )

    def finish(self, shards: list[tuple[str, Shard]]) -> Manifest:
        """Completes the folder of these (split, shard) pairs, and returns its manifest.

        Saves the tokenizer, then the manifest, and removes the work folders only after that.
        """
        distinct_documents = sum(shard.documents for _, shard in shards)
        counts = {
            "text_bytes": self.counts["text_bytes"],
            "documents_read": self.counts["documents_read"],
            "empty_documents": self.counts["empty_documents"],
            "cut_documents": sum(source.cut_documents for source in self.sources),
            "replaced_characters": sum(source.replaced_characters for source in self.sources),
        }
        counts["duplicate_documents"] = (
            counts["documents_read"] - counts["empty_documents"] - distinct_documents
        )
        new_manifest = Manifest(
            folder=self.output_dir,
            vocabulary_sha256=self.tokenizer.checksum,
            vocabulary_size=self.tokenizer.vocabulary_size,
            token_dtype=self.dtype,
            settings=self.settings,
            counts=counts,
            splits={
                split: Split.of(shard for name, shard in shards if name == split)
                for split in ("train", "held_out")
            },
        )
        self._remove_strangers(new_manifest)
        # The tokenizer is staged on the file system of the output, where renaming is possible. The
        # staging folder is in the work folder, so that leftovers of a killed run are removed.
        staging = os.path.join(self.output_dir, _WORK_FOLDER)
        save_tokenizer(self.tokenizer, self.output_dir, os.path.join(staging, "tokenizer"))
        new_manifest.save()
        for folder in (self.work, staging):
            remove_tree(folder)
        return new_manifest

    def _remove_strangers(self, done: Manifest) -> None:
        """Removes shards that `done` does not list: those of an attempt with other text."""
        shards = [shard for split in done.splits.values() for shard in split.shards]
        ours = {name for shard in shards for name in (shard.file, shard.index)}
        for path in Path(self.output_dir).iterdir():
            if shard_files.SHARD_NAME.fullmatch(path.name) and path.name not in ours:
                atomic.remove(path)

    def abandon(self) -> None:
        """Cleans up after an error: removes partial files, keeps finished ones for the next run.

        If no work is finished, the plan is removed too, and the output folder if it is empty.
        """
        atomic.remove_leftovers(self.output_dir)
        atomic.remove_leftovers(self.work)
        if not any(Path(self.work).iterdir()):
            remove_tree(self.work)
            atomic.remove(os.path.join(self.output_dir, PLAN_FILE))
            with contextlib.suppress(OSError):  # the folder may contain files of the user
                Path(self.output_dir).rmdir()
