"""A writer and readers in other processes: stock Chroma lets both write the index files, which ends in SIGSEGV."""

import subprocess
import sys
from pathlib import Path

import pytest

from ingest import store
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder

READER = """
import sys
from pathlib import Path
from ingest import store
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
store.REOPEN_SECONDS = 0
embedder = WordCountEmbedder()
knowledge_base = KnowledgeBase.open(Path(sys.argv[1]), "team", embedder)
asked = 0
while not Path(sys.argv[1], "written").exists():
    found = knowledge_base.dense(embedder.embed_query("number 1 of 第七"), 5)
    knowledge_base.chunks([id_ for id_, _ in found])
    asked += 1
    if asked == 1:
        print("asked", flush=True)
"""


def test_readers_that_load_all_the_time_neither_fall_nor_spoil_the_index(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "LEAST_ROWS", 300)
    embedder = WordCountEmbedder()
    knowledge_base = KnowledgeBase.open(tmp_path, "team", embedder, create=True)
    command = [sys.executable, "-X", "faulthandler", "-c", READER, str(tmp_path)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [f"number {number} of {number * 7919 % 5003} and 第{number * 31 % 997}" for number in range(1500)]
    for reader in readers:
        assert reader.stdout and reader.stdout.readline() == "asked\n"
    for again in (" once", ""):
        for start in range(0, len(texts), 250):
            some = [text + again for text in texts[start : start + 250]]
            knowledge_base.add_texts(some, ids=[str(start + number) for number in range(len(some))])
    (tmp_path / "written").touch()
    ended = []
    for reader in readers:
        _, errors = reader.communicate(timeout=60)
        ended.append((reader.returncode, errors))
    assert ended == [(0, "")] * len(readers)
    for one in (knowledge_base, KnowledgeBase.open(tmp_path, "team", embedder)):
        assert one.count() == (1500, 1500)
        best = [one.dense(embedder.embed_query(text), 1)[0][1] for text in texts]
        assert min(best) == pytest.approx(1, abs=1e-5), sum(score < 0.9999 for score in best)
        one.close()
