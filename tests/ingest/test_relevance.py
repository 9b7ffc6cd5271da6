import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.journal import Journal
from ingest.pipeline import ingest
from ingest.probes import measure
from ingest.relevance import BAR, LEAST_CHUNKS, UNMEASURED, Relevance, Weights, reads_words
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder

WORDS = [
    "leave",
    "travel",
    "probe",
    "cable",
    "battery",
    "invoice",
    "garden",
    "window",
    "river",
    "teacher",
    "doctor",
    "engine",
    "paper",
    "bridge",
    "music",
]
HAN = "年假差旅探头电缆电池发票花园窗户河流老师医生发动机纸张桥梁音乐学校图书馆飞机火车轮船苹果香蕉"
MEASURED = Relevance(100, Weights(3.0, 4.0, -5.0), Weights(1.0, 9.0, -6.0))

Make = Callable[..., KnowledgeBase]


def english(number: int) -> str:
    """Three sentences that name their subject, and words of chance."""
    chance = random.Random(number)
    sentences = [f"Rule{number} says that the {' '.join(chance.choices(WORDS, k=6))} is so." for _ in range(3)]
    return " ".join(sentences)


def chinese(number: int) -> str:
    """The same in Chinese."""
    chance = random.Random(number)
    subject = "".join(chance.sample(HAN, 3))
    return "".join(f"关于{subject}的规定是{''.join(chance.choices(HAN, k=12))}。" for _ in range(3))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes knowledge bases of texts, one chunk each."""
    opened = list[KnowledgeBase]()

    def of(texts: list[str], embedder: WordCountEmbedder | None = None) -> KnowledgeBase:
        embedder = embedder or WordCountEmbedder(max_tokens=200)
        opened.append(KnowledgeBase.open(tmp_path, f"kb{len(opened)}", embedder, create=True))
        opened[-1].add_texts(texts, ids=[f"t{number}" for number in range(len(texts))])
        return opened[-1]

    yield of
    for knowledge_base in opened:
        knowledge_base.close()


@pytest.mark.parametrize(
    ("texts", "measured"),
    [
        ([english(number) for number in range(40)], (True, False)),
        ([chinese(number) for number in range(40)], (False, True)),
        ([text(number) for number in range(60) for text in (english, chinese)], (True, True)),
        ([english(number) for number in range(LEAST_CHUNKS - 1)], (False, False)),
        ([f"word{number}" for number in range(60)], (False, False)),  # nothing to take a sentence from
        (["The same. And the same again, for all of them."] * 40, (False, False)),
        ([], (False, False)),
    ],
    ids=["english", "chinese", "mixed", "too-small", "one-word-chunks", "copies", "empty"],
)
def test_each_kind_of_language_is_measured_where_there_is_enough_of_it(make: Make, texts, measured) -> None:
    relevance = make(texts).relevance()
    assert relevance.chunks == (len(texts) if len(texts) >= LEAST_CHUNKS else 0)
    assert (relevance.words != UNMEASURED.words, relevance.characters != UNMEASURED.characters) == measured
    for weights in (relevance.words, relevance.characters):
        assert weights.dense > 0 and weights.lexical > 0


def test_the_same_content_is_measured_alike(make: Make) -> None:
    texts = [text(number) for number in range(30) for text in (english, chinese)]
    one, two = make(texts), make(texts)
    assert one.relevance() == measure(one) == measure(one)
    for kind in ("words", "characters"):  # tantivy and Chroma may break a tie among the last rivals otherwise
        first, second = (getattr(knowledge_base.relevance(), kind) for knowledge_base in (one, two))
        assert first.lexical == pytest.approx(second.lexical, rel=0.02)
        assert first.dense == pytest.approx(second.dense, rel=0.02)


class Blind(WordCountEmbedder):
    """Gives each text a vector that says nothing of it."""

    def embed_query(self, text: str) -> list[float]:
        chance = random.Random(text)
        return [chance.gauss(0, 1) for _ in range(self.dimension)]


@pytest.mark.parametrize("text", [english, chinese])
def test_an_embedder_that_knows_nothing_counts_for_little(make: Make, text: Callable[[int], str]) -> None:
    texts = [text(number) for number in range(60)]

    def share(knowledge_base: KnowledgeBase) -> float:
        weights = knowledge_base.relevance().for_question(texts[0], knowledge_base.embedder)
        return weights.dense / weights.lexical

    assert share(make(texts, Blind(max_tokens=200))) < 0.5 * share(make(texts))


@pytest.mark.parametrize("text", [english, chinese])
def test_sentences_pass_the_bar_and_foreign_ones_do_not(make: Make, text: Callable[[int], str]) -> None:
    knowledge_base = make([text(number) for number in range(80)])
    relevance = knowledge_base.relevance()
    assert relevance.bar == BAR

    def best(question: str) -> float:
        vector = knowledge_base.embedder.embed_query(question)
        ids = [id_ for id_, _ in [*knowledge_base.dense(vector, 20), *knowledge_base.lexical(question, 20)]]
        weights = relevance.for_question(question, knowledge_base.embedder)
        figures = knowledge_base.similarities(vector, ids), knowledge_base.coverages(question, ids)
        return max(map(weights.relevance, *figures), default=0.0)

    own = [best(text(number).split("。" if text is chinese else ". ")[0]) for number in range(80)]
    assert sum(score >= BAR for score in own) >= 0.9 * len(own)
    foreign = ["Wer hat am Montag den Schlüssel zurückgebracht?", "昨天谁把钥匙还给门卫了？", "zyzzyva qwertz"]
    assert [question for question in foreign if best(question) >= BAR] == []


def test_measured_anew_when_there_is_twice_as_much_or_half(make: Make) -> None:
    knowledge_base = make([english(number) for number in range(40)])
    counts = [knowledge_base.relevance().chunks]
    for first, last in [(40, 79), (79, 80)]:
        added = range(first, last)
        knowledge_base.add_texts([english(n) for n in added], ids=[f"t{n}" for n in added])
        counts.append(knowledge_base.relevance().chunks)
    for first, last in [(0, 39), (39, 40)]:
        knowledge_base.delete([f"t{number}" for number in range(first, last)])
        counts.append(knowledge_base.relevance().chunks)
    assert counts == [40, 40, 80, 80, 40]


@pytest.mark.parametrize("chunks", [24, 1000, 10**6])
def test_one_more_or_less_is_no_reason_to_measure(chunks: int) -> None:
    relevance = replace(MEASURED, chunks=chunks)
    assert not relevance.is_due(chunks + 1) and not relevance.is_due(chunks - 1)
    assert relevance.is_due(2 * chunks) and relevance.is_due(chunks // 2) is (chunks // 2 >= LEAST_CHUNKS)


def test_an_update_of_one_file_embeds_only_that(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(english(number), encoding="utf-8")
    embedder = WordCountEmbedder(max_tokens=200)
    knowledge_base = KnowledgeBase.open(tmp_path / "store", "team", embedder, create=True)
    ingest(folder, knowledge_base, IngestOptions(workers=0))
    before, embedder.embedded = knowledge_base.relevance(), 0
    (folder / "1.txt").write_text(chinese(1), encoding="utf-8")
    ingest(folder, knowledge_base, IngestOptions(workers=0))
    assert embedder.embedded == 1
    assert knowledge_base.relevance() == before != UNMEASURED
    knowledge_base.close()


def test_weights_survive_json() -> None:
    assert Relevance.from_json(MEASURED.to_json()) == MEASURED


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "",
        "{",
        "null",
        "7",
        "[]",
        '"text"',
        "{}",
        MEASURED.to_json()[:-9],
        MEASURED.to_json().replace('"version": 1', '"version": 99'),
        MEASURED.to_json().replace("100", "NaN"),
        MEASURED.to_json().replace("100", "Infinity"),
        MEASURED.to_json().replace("3.0", "NaN"),
        MEASURED.to_json().replace("3.0", "-3.0"),
        MEASURED.to_json().replace("3.0", "1e999"),
        MEASURED.to_json().replace("3.0", '"much"'),
        MEASURED.to_json().replace("3.0", "null"),
        MEASURED.to_json().replace('"lexical"', '"else"'),
        '{"version": 1, "chunks": 5, "words": [1, 2, 3], "characters": "x"}',
        "[" * 100_000,
    ],
)
def test_damaged_weights_are_those_of_nobody(stored: str | None) -> None:
    assert Relevance.from_json(stored) == UNMEASURED


@pytest.mark.parametrize("stored", ["{", '{"dense": 3}', "垃圾"])
def test_damaged_weights_are_measured_anew_by_the_next_writer(make: Make, stored: str) -> None:
    knowledge_base = make([english(number) for number in range(40)])
    good = knowledge_base.relevance()
    with knowledge_base.journal._transaction(changing=False) as connection:
        connection.execute("UPDATE about SET value = ? WHERE name = 'relevance'", (stored,))
    assert knowledge_base.relevance() == UNMEASURED
    with knowledge_base.writing():
        pass
    assert knowledge_base.relevance() == good != UNMEASURED


class Unreachable(WordCountEmbedder):
    """Takes documents, and fails with questions once it has a failure."""

    failure: Exception | None = None

    def embed_query(self, text: str) -> list[float]:
        if self.failure and threading.current_thread() is not threading.main_thread():
            raise self.failure
        return super().embed_query(text)


class Unheard(Exception):
    """What some library raises."""


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), OSError("no route"), Unheard("429")])
def test_a_failure_to_measure_keeps_the_earlier_weights_and_all_chunks(make: Make, failure, caplog) -> None:
    embedder = Unreachable(max_tokens=200)
    knowledge_base = make([english(number) for number in range(30)], embedder)
    before, embedder.failure = knowledge_base.relevance(), failure
    knowledge_base.add_texts([english(number) for number in range(30, 80)])
    assert "goes on with the weights" in caplog.text and str(failure) in caplog.text
    assert knowledge_base.relevance() == before != UNMEASURED
    assert knowledge_base.count()[1] == 80
    assert knowledge_base.chunks([knowledge_base.lexical("Rule79", 1)[0][0]])[0].page_content == english(79)


def test_an_ingest_killed_while_it_measures_has_lost_nothing(make: Make, monkeypatch) -> None:
    def killed(knowledge_base: KnowledgeBase) -> Relevance:
        raise KeyboardInterrupt

    texts = [english(number) for number in range(40)]
    knowledge_base = make([])
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr("ingest.store.measure", killed)
        knowledge_base.add_texts(texts)
    again = KnowledgeBase.open(knowledge_base.folder, knowledge_base.name, WordCountEmbedder(max_tokens=200))
    assert again.count() == (40, 40)
    assert again.lexical("Rule39", 3) and again.relevance() == UNMEASURED
    with again.writing():
        pass
    assert again.relevance().chunks == 40
    assert again.embedder.embedded == len(texts)  # the rests of the probes: no chunk a second time
    again.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("How many days of leave", True),
        ("年假有几天？", False),
        ("leave 年假", True),
        ("leave 年假年假年假", False),
        ("", True),
        ("?! …", True),
        ("x", False),
    ],
)
def test_a_question_is_in_words_or_in_characters_as_its_embedder_reads_it(text: str, words: bool) -> None:
    assert reads_words(text, WordCountEmbedder()) is words


def test_a_relevance_is_from_0_to_1_and_rises_with_both_figures() -> None:
    weights = UNMEASURED.words
    figures = [weights.relevance(similarity, 0.4) for similarity in (-1, 0, 0.5, 1)]
    assert figures == sorted(figures) and 0 < figures[0] < BAR < figures[-1] < 1
    figures = [weights.relevance(0.3, coverage) for coverage in (0, 0.4, 1, 2)]
    assert figures == sorted(figures) and 0 < figures[0] < BAR < figures[-1] < 1
    assert Weights(1e9, 1e9, 0).relevance(1, 1) == 1 and Weights(1e9, 1e9, 0).relevance(-1, 0) < 1e-300


def test_a_journal_of_before_has_the_weights_of_nobody(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "old.sqlite3")
    assert journal.relevance() == UNMEASURED
    journal.close()


def test_no_more_probes_than_planned_are_asked(make: Make, monkeypatch) -> None:
    monkeypatch.setattr("ingest.probes.PROBES", (25, 30))
    monkeypatch.setattr("ingest.probes.SHARE", 2)
    embedder = WordCountEmbedder(max_tokens=200)
    knowledge_base = make([english(number) for number in range(100)], embedder)
    embedder.embedded = 0
    measure(knowledge_base)
    assert embedder.embedded == 30
