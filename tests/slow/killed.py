"""What the kill test runs as processes of their own: `python -m tests.slow.killed ingest|compare|hang …`."""

import sys
from itertools import count
from pathlib import Path

from ingest import store as store_module
from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
from tests.ingest.troublesome import TroublesomeEmbedder

OPTIONS = IngestOptions(chunk_tokens=24, batch_chunks=16, workers=2)
NEAR = 1e-5


def run(store: Path, folder: Path, embedder: WordCountEmbedder) -> KnowledgeBase:
    knowledge_base = KnowledgeBase.open(store, "团队", embedder, create=True)
    print("begun", flush=True)
    ingest(folder, knowledge_base, OPTIONS)
    return knowledge_base


def everything(knowledge_base: KnowledgeBase) -> dict[str, tuple[str, dict]]:
    """Each chunk in Chroma by its id, whatever the journal says."""
    got = knowledge_base.ask(lambda collection: collection.get(include=["documents", "metadatas"]))
    return dict(zip(got["ids"], zip(got["documents"], got["metadatas"], strict=True), strict=True))


def differences(killed: KnowledgeBase, whole: KnowledgeBase) -> list[str]:
    """What a knowledge base whose runs were killed has otherwise than one that was made in one run."""
    has, should = everything(killed), everything(whole)
    found = [f"{id_} is missing: {should[id_]}" for id_ in should.keys() - has.keys()]
    found += [f"{id_} is too much: {has[id_]}" for id_ in has.keys() - should.keys()]
    found += [
        f"{id_} is {has[id_]}, not {should[id_]}" for id_ in has.keys() & should.keys() if has[id_] != should[id_]
    ]
    if killed.documents() != whole.documents():
        found.append("the documents differ")
    if killed.journal.files() != whole.journal.files():
        found.append("the files that were read to their end differ")
    if killed.journal.pending():
        found.append(f"pending: {killed.journal.pending()}")
    return found + not_found(killed, {id_: text for id_, (text, _) in has.items()})


def not_found(knowledge_base: KnowledgeBase, texts: dict[str, str]) -> list[str]:
    """The chunks that their own full text does not find at rank 1, ties allowed, in either leg."""
    copies = list(texts.values())
    missed = []
    for id_, text in texts.items():
        k = copies.count(text) + 10
        legs = {
            "dense": knowledge_base.dense(knowledge_base.embedder.embed_query(text), k),
            "lexical": knowledge_base.lexical(text, k),
        }
        for leg, hits in legs.items():
            if dict(hits).get(id_, -1) < hits[0][1] - NEAR if hits else True:
                missed.append(f"{leg}: {id_} is not first for its own text {text!r}")
    return missed


def grow(store: Path) -> None:
    """Write the index files again and again: after each hundred rows, of which some are taken out again."""
    store_module.LEAST_ROWS = 100
    knowledge_base = KnowledgeBase.open(store, "团队", WordCountEmbedder(), create=True)
    print("begun", flush=True)
    for begin in count(knowledge_base.count()[1], 100):
        texts = [" ".join(f"词word{8 * number + word}" for word in range(8)) for number in range(begin, begin + 100)]
        ids = knowledge_base.add_texts(texts)
        knowledge_base.delete(ids[:20])


def main() -> None:
    what, store, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if what == "grow":
        grow(store)
    elif what == "compare":
        killed = run(store, folder, WordCountEmbedder())
        whole = run(Path(sys.argv[4]), folder, WordCountEmbedder())
        print(*differences(killed, whole), f"{whole.count()[1]} chunks compared", sep="\n")
    else:
        run(store, folder, TroublesomeEmbedder() if what == "hang" else WordCountEmbedder())
        print("done", flush=True)


if __name__ == "__main__":
    main()
