"""The real embedder reads a part of a long text only: what stands at a text's end is found all the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow.conftest import GROUNDWELL, environment

ASK = """
import json, sys
from pathlib import Path
from langchain_core.documents import Document
from ingest.store import KnowledgeBase
from llm.embeddings import Embedder
knowledge_base = KnowledgeBase.open(Path(sys.argv[1]), "default", embedder := Embedder())
answers, texts = {}, json.loads(sys.argv[2])
for name, (text, question) in texts.items():
    found = knowledge_base.dense(embedder.embed_query(question), 1, where={"source": name})
    answers[name] = [one.page_content for one in knowledge_base.chunks([id_ for id_, _ in found])]
stored = list(knowledge_base.stored(knowledge_base.journal.ids()).values())
chunks = {name: [one.page_content for one in stored if one.metadata["source"] == name] for name in texts}
knowledge_base.add_documents([Document(text, id=name) for name, (text, _) in texts.items()])
parts = {name: [one.page_content for one in knowledge_base.get_by_ids([name])] for name in texts}
model = embedder._model
tokens = [len(model.tokenizer(one)["input_ids"]) for some in (chunks, parts) for each in some.values() for one in each]
print(json.dumps([answers, chunks, parts, max(tokens), model.max_seq_length]))
"""
CHINESE = "苏州办公室位于工业园区，员工每天上午九点上班，下午六点下班，午餐时间为一小时。访客须在前台登记并佩戴胸牌。"
ENGLISH = "The office in Suzhou lies in the industrial park, and visitors must sign in at the desk and wear a badge. "
NO_MARKS = "苏州办公室位于工业园区员工每天上午九点上班下午六点下班午餐时间为一小时访客须在前台登记并佩戴胸牌"
TEXTS = {
    "中文.txt": ((CHINESE * 40)[:2000] + "密码是 47913", "密码是多少？"),
    "english.txt": ((ENGLISH * 20)[:2000] + "The password is 47913.", "What is the password?"),
    "long.txt": ((CHINESE * 200)[:10_000] + "密码是 47913", "密码是多少？"),
    "bare.txt": ((NO_MARKS * 120)[:5000], "密码是多少？"),
}


@pytest.mark.timeout(500)
def test_facts_at_the_end_are_found_and_no_chunk_is_longer_than_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    for name, (text, _) in TEXTS.items():
        (tmp_path / "documents" / name).write_text(text, encoding="utf-8")
    command = [*GROUNDWELL, "ingest", "documents"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=240)
    command = [sys.executable, "-c", ASK, str(tmp_path / ".groundwell" / "store"), json.dumps(TEXTS)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=240, stdout=subprocess.PIPE)
    answers, chunks, parts, longest, read = json.loads(done.stdout)
    assert [name for name in TEXTS if "47913" in answers[name][0]] == ["中文.txt", "english.txt", "long.txt"]
    assert longest <= read
    for name, (text, _) in TEXTS.items():
        assert len(parts[name]) > 1
        assert "".join("".join(parts[name]).split()) == "".join(text.split())
        assert sorted(chunks[name]) == sorted(parts[name]) or sum(map(len, chunks[name])) == sum(map(len, parts[name]))
