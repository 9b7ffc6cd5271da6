"""How far cosine similarity and a question's own words speak for a chunk, measured on the knowledge base's own text.

A probe is a sentence of a chunk, asked as a question. Asked of the chunks as they are, it is a question in the
documents' own words; asked of its chunk without the sentence (the inverse cloze task of Lee, Chang and Toutanova 2019,
"Latent Retrieval for Weakly Supervised Open Domain Question Answering"), it is one in other words. People's questions
lie between: the weights are the mean of a logistic regression on each. They are measured apart for questions that the
embedder reads as words and for those that it reads character by character, of which it may know nothing.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingest.split import LINE, SENTENCE
from ingest.terms import terms

if TYPE_CHECKING:
    from ingest.embedder import EmbedderLike
    from ingest.store import KnowledgeBase

LEAST_CHUNKS = 24
"""Chunks, and probes of a kind: with fewer, the weights of another knowledge base are the better guess."""
PROBES, SHARE = (48, 128), 40
"""At least and at most, and one for so many chunks in between: each costs embedding a sentence and a chunk."""
RIVALS = 20
"""Best chunks of each leg that a probe's own chunk is compared with."""
LEAST_TERMS = 3
LEAST_WEIGHT = 0.1
"""Of a leg, so that it still decides between equals."""
K1, B = 1.2, 0.75
"""BM25's usual constants, which are tantivy's."""
REGULARISATION = 10.0

Example = tuple[float, float]
"""A chunk's similarity and coverage."""


@dataclass(frozen=True)
class Weights:
    """A chunk's relevance is the logistic function of `dense` · similarity + `lexical` · coverage + `bias`."""

    dense: float
    lexical: float
    bias: float

    def relevance(self, similarity: float, coverage: float) -> float:
        """In [0, 1]: how likely a question with these figures was taken from the chunk."""
        exponent = self.dense * similarity + self.lexical * coverage + self.bias
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, exponent))))


@dataclass(frozen=True)
class Relevance:
    """What was measured, and when the knowledge base had so many chunks."""

    chunks: int
    words: Weights
    characters: Weights

    def for_question(self, question: str, embedder: "EmbedderLike") -> Weights:
        """The weights for a question that is read as `question` is."""
        return self.words if share_in_words(question, embedder) >= 0.5 else self.characters

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Relevance":
        stored = json.loads(text)
        return cls(stored["chunks"], Weights(**stored["words"]), Weights(**stored["characters"]))


UNMEASURED = Relevance(0, Weights(8.0, 7.0, -8.0), Weights(2.0, 10.0, -8.0))
"""For a knowledge base too small to be measured: about what `data/sample` gives with the small model."""


@dataclass(frozen=True)
class Probe:
    """A sentence of a chunk, and the chunk without it."""

    id: str
    sentence: str
    text: str
    rest: str


def share_in_words(text: str, embedder: "EmbedderLike") -> float:
    """The share of the text's letters, in [0, 1], that the embedder reads in tokens of more than one character.

    An embedder whose vocabulary lacks a language cuts it into single characters: MiniLM reads English words whole and
    Chinese one character at a time. 1 for a text without letters.
    """
    spans = [(start, end) for start, end in embedder.offsets(text) if text[start:end].strip().isalnum()]
    letters = sum(end - start for start, end in spans)
    return sum(end - start for start, end in spans if end - start > 1) / letters if letters else 1.0


def is_due(measured: Relevance, chunks: int) -> bool:
    """Whether the knowledge base has grown or shrunk so much that it should be measured again."""
    return chunks >= LEAST_CHUNKS and not measured.chunks / 2 < chunks < 2 * max(measured.chunks, 1)


def measure(knowledge_base: "KnowledgeBase") -> Relevance:
    """Weights for a knowledge base, by up to 128 probes; the same for the same content. For the writer or a reader."""
    ids = sorted(knowledge_base.journal.ids())
    least, most = PROBES
    probes = make_probes(
        knowledge_base, random.Random(0).sample(ids, min(len(ids), max(least, min(most, len(ids) // SHARE))))
    )
    kinds: dict[bool, list[Probe]] = {True: [], False: []}
    for probe in probes:
        kinds[share_in_words(probe.sentence, knowledge_base.embedder) >= 0.5].append(probe)
    words, characters = (
        _fitted(knowledge_base, kinds[kind]) if len(kinds[kind]) >= LEAST_CHUNKS else unmeasured
        for kind, unmeasured in ((True, UNMEASURED.words), (False, UNMEASURED.characters))
    )
    return Relevance(len(ids), words, characters)


def make_probes(knowledge_base: "KnowledgeBase", ids: Iterable[str]) -> list[Probe]:
    """One for each chunk that has at least two sentences or lines of three terms."""
    probes = []
    for id_, document in sorted(knowledge_base.stored(ids).items()):
        chance = random.Random(id_)
        text = document.page_content
        sentences = [sentence for sentence in _sentences(text) if len(set(terms(sentence))) >= LEAST_TERMS]
        if len(sentences) > 1:
            sentence = chance.choice(sentences)
            probes.append(Probe(id_, sentence, text, text.replace(sentence, " ")))
    return probes


def _sentences(text: str) -> list[str]:
    ends = sorted({match.end() for pattern in (SENTENCE, LINE) for match in pattern.finditer(text)} | {len(text)})
    return [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


def _fitted(knowledge_base: "KnowledgeBase", probes: Sequence[Probe]) -> Weights:
    embedder = knowledge_base.embedder
    rests = embedder.embed_documents([probe.rest for probe in probes])
    mean = sum(len(terms(probe.text)) for probe in probes) / len(probes)
    verbatim: list[tuple[Example, bool]] = []
    cloze: list[tuple[Example, bool]] = []
    for probe, rest in zip(probes, rests, strict=True):
        vector = embedder.embed_query(probe.sentence)
        rivals, own = _figures(knowledge_base, probe, vector)
        verbatim += [*((rival, False) for rival in rivals), (own, True)]
        without = _cosine(vector, rest), own[1] * _kept(knowledge_base, probe, mean)
        cloze += [*((rival, False) for rival in rivals), (without, True)]
    one, two = _regression(verbatim), _regression(cloze)
    return Weights(
        max(LEAST_WEIGHT, (one[0] + two[0]) / 2), max(LEAST_WEIGHT, (one[1] + two[1]) / 2), (one[2] + two[2]) / 2
    )


def _figures(knowledge_base: "KnowledgeBase", probe: Probe, vector: list[float]) -> tuple[list[Example], Example]:
    """Similarity and coverage of the best of both legs, without the probe's own chunk, and of that."""
    found = dict(knowledge_base.dense(vector, RIVALS)) | dict(knowledge_base.lexical(probe.sentence, RIVALS))
    ids = [probe.id, *(id_ for id_ in found if id_ != probe.id)]
    similarities, coverages = knowledge_base.similarities(vector, ids), knowledge_base.coverages(probe.sentence, ids)
    own, *rivals = zip(similarities, coverages, strict=True)
    return rivals, own


def _kept(knowledge_base: "KnowledgeBase", probe: Probe, mean: float) -> float:
    """The share of the chunk's BM25 score that is left without the sentence."""
    weights = knowledge_base.term_weights(probe.sentence)
    whole, rest = (_bm25(weights, terms(text), mean) for text in (probe.text, probe.rest))
    return rest / whole if whole else 0.0


def _bm25(weights: dict[str, float], found: list[str], mean: float) -> float:
    counts, length = Counter(found), K1 * (1 - B + B * len(found) / mean)
    return sum(weight * counts[term] / (counts[term] + length) for term, weight in weights.items() if term in counts)


def _cosine(one: Sequence[float], two: Sequence[float]) -> float:
    import numpy

    return float(numpy.dot(one, two) / ((numpy.linalg.norm(one) * numpy.linalg.norm(two)) or 1))


def _regression(examples: Sequence[tuple[Example, bool]]) -> tuple[float, float, float]:
    from sklearn.linear_model import LogisticRegression

    fitted: Any = LogisticRegression(C=REGULARISATION).fit(
        [figures for figures, _ in examples], [right for _, right in examples]
    )
    dense, lexical = fitted.coef_[0]
    return float(dense), float(lexical), float(fitted.intercept_[0])
