"""Measures on a knowledge base's own text how far each leg is to be trusted, and where the bar lies.

A probe is a sentence of a chunk, asked as a question. Asked of the chunks as they are, it is a question in the
documents' own words; asked of its chunk without the sentence (the inverse cloze task of Lee, Chang and Toutanova 2019,
"Latent Retrieval for Weakly Supervised Open Domain Question Answering"), it is one in other words. People's questions
lie between: the weights are the mean of a conditional logit (McFadden 1974, "Conditional logit analysis of qualitative
choice behavior") on each, which asks what sets a probe's own chunk apart from the best of the others.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.relevance import LEAST_CHUNKS, UNMEASURED, Relevance, Weights, reads_words
from ingest.split import LINE, SENTENCE
from ingest.terms import terms

if TYPE_CHECKING:
    from ingest.store import KnowledgeBase

PROBES, SHARE = (64, 128), 40
"""At least and at most of each kind, and one for so many chunks in between: each embeds a sentence and a chunk."""
LOOKED_AT = 4
"""Chunks read for one probe wanted: some have one sentence only, others one of the other kind."""
RIVALS = 20
"""Best chunks of each leg that a probe's own chunk is compared with."""
ASKED_AT_ONCE = 16
"""Questions that come together share a pass of the embedder."""
LEAST_TERMS = 3
LEAST_WEIGHT = 0.1
"""Of a leg, so that it still decides between equals."""
PASSING = 0.9
"""The share of probes whose best chunk stands above the bar."""
K1, B = 1.2, 0.75
"""BM25's usual constants, which are tantivy's."""
PENALTY = 0.05
"""On the squares of the weights: keeps them finite where one leg finds every probe."""

Figures = Any
"""A numpy array, chunks × (similarity, coverage)."""


@dataclass(frozen=True)
class Probe:
    """A sentence of a chunk, and the chunk without it."""

    id: str
    sentence: str
    text: str
    rest: str


@dataclass(frozen=True)
class Comparison:
    """A probe's own chunk, as it is and without the sentence, and its rivals."""

    verbatim: Figures
    cloze: Figures
    rivals: Figures


def measure(knowledge_base: "KnowledgeBase") -> Relevance:
    """Weights for a knowledge base, by up to 128 probes of each kind; asked again, the same.

    What has fewer than LEAST_CHUNKS probes gets the weights of UNMEASURED. For the writer or a reader.
    """
    ids = sorted(knowledge_base.journal.ids())
    least, most = PROBES
    number = max(least, min(most, len(ids) // SHARE))
    looked_at = random.Random(0).sample(ids, min(len(ids), LOOKED_AT * number))
    kinds: dict[bool, list[Probe]] = {True: [], False: []}
    for probe in _probes(knowledge_base, looked_at):
        kinds[reads_words(probe.sentence, knowledge_base.embedder)].append(probe)
    words, characters = (_compared(knowledge_base, kinds[kind][:number]) for kind in (True, False))
    return Relevance(
        len(ids),
        _fitted(words) if len(words) >= LEAST_CHUNKS else UNMEASURED.words,
        _fitted(characters) if len(characters) >= LEAST_CHUNKS else UNMEASURED.characters,
    )


def _probes(knowledge_base: "KnowledgeBase", ids: Sequence[str]) -> Iterator[Probe]:
    """One for each chunk that has at least two sentences or lines of three terms, in the order of `ids`."""
    stored = knowledge_base.stored(ids)
    for id_ in filter(stored.__contains__, ids):
        text = stored[id_].page_content
        sentences = [sentence for sentence in _sentences(text) if len(set(terms(sentence))) >= LEAST_TERMS]
        if len(sentences) > 1:
            sentence = random.Random(id_).choice(sentences)
            yield Probe(id_, sentence, text, text.replace(sentence, " "))


def _sentences(text: str) -> list[str]:
    ends = sorted({match.end() for pattern in (SENTENCE, LINE) for match in pattern.finditer(text)} | {len(text)})
    return [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


def _compared(knowledge_base: "KnowledgeBase", probes: Sequence[Probe]) -> list[Comparison]:
    """The probes that have rivals; none of a kind of which there are too few."""
    if len(probes) < LEAST_CHUNKS:
        return []
    rests = knowledge_base.embedder.embed_documents([probe.rest for probe in probes])
    with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
        vectors = list(threads.map(knowledge_base.embedder.embed_query, [probe.sentence for probe in probes]))
    mean = sum(len(terms(probe.text)) for probe in probes) / len(probes)
    compared = [_comparison(knowledge_base, *one, mean) for one in zip(probes, vectors, rests, strict=True)]
    return [one for one in compared if len(one.rivals)]


def _fitted(compared: Sequence[Comparison]) -> Weights:
    import numpy

    verbatim = _conditional_logit([one.rivals - one.verbatim for one in compared])
    cloze = _conditional_logit([one.rivals - one.cloze for one in compared])
    weights = numpy.maximum(LEAST_WEIGHT, (verbatim + cloze) / 2)
    best = [
        max(float(figures @ weights) for figures in (own, *one.rivals))
        for one in compared
        for own in (one.verbatim, one.cloze)
    ]
    return Weights(float(weights[0]), float(weights[1]), -float(numpy.quantile(best, 1 - PASSING)))


def _comparison(
    knowledge_base: "KnowledgeBase", probe: Probe, vector: list[float], rest: list[float], mean: float
) -> Comparison:
    import numpy

    ids = [probe.id, *_rivals(knowledge_base, probe, vector)]
    columns = knowledge_base.similarities(vector, ids), knowledge_base.coverages(probe.sentence, ids)
    figures = numpy.array(columns).T
    norms = numpy.linalg.norm(vector) * numpy.linalg.norm(rest)
    cloze = float(numpy.dot(vector, rest) / (norms or 1)), figures[0, 1] * _kept(knowledge_base, probe, mean)
    return Comparison(figures[0], numpy.array(cloze), figures[1:])


def _rivals(knowledge_base: "KnowledgeBase", probe: Probe, vector: list[float]) -> list[str]:
    """The best chunks of both legs, but for the probe's own and its copies, which hold the same sentence."""
    found = dict(knowledge_base.dense(vector, RIVALS)) | dict(knowledge_base.lexical(probe.sentence, RIVALS))
    stored = knowledge_base.stored(id_ for id_ in found if id_ != probe.id)
    return sorted(id_ for id_, document in stored.items() if probe.sentence not in document.page_content)


def _kept(knowledge_base: "KnowledgeBase", probe: Probe, mean: float) -> float:
    """The share of the chunk's BM25 score that is left without the sentence."""
    weights = knowledge_base.term_weights(probe.sentence)
    whole, rest = (_bm25(weights, terms(text), mean) for text in (probe.text, probe.rest))
    return rest / whole if whole else 0.0


def _bm25(weights: dict[str, float], found: list[str], mean: float) -> float:
    counts, length = Counter(found), K1 * (1 - B + B * len(found) / mean)
    return sum(weight * counts[term] / (counts[term] + length) for term, weight in weights.items() if term in counts)


def _conditional_logit(differences: Sequence[Figures]) -> Figures:
    """The two weights under which the own chunks are most likely chosen, from what rivals have more than they."""
    import numpy
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    rows = [numpy.vstack([numpy.zeros((1, 2)), rivals]) for rivals in differences]

    def loss(weights: Figures) -> tuple[float, Figures]:
        scores = [row @ weights for row in rows]
        gradient = sum((softmax(score) @ row for score, row in zip(scores, rows, strict=True)), PENALTY * 2 * weights)
        return sum(map(logsumexp, scores)) + PENALTY * float(weights @ weights), gradient

    return minimize(loss, numpy.ones(2), jac=True, method="L-BFGS-B").x
