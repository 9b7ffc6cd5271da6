"""The vector of a question of any length: one longer than the embedder reads is split and pooled, not cut."""

from ingest.document import LoadedDocument
from ingest.embedder import EmbedderLike
from ingest.split import split

ROOM = 0.75
"""Of a document's tokens in a question's: some models put an instruction of a sentence or two before questions."""
MOST_PIECES = 32
"""Of a longer question, so many at equal distances: each costs a pass of the embedder."""


def embed_question(question: str, embedder: EmbedderLike) -> list[float]:
    """The question's vector, or, of its pieces cut at sentences, the mean by length, of length 1."""
    import numpy

    limit = max(1, int(embedder.max_tokens * ROOM))
    if len(embedder.offsets(question)) <= limit:
        return embedder.embed_query(question)
    texts = [chunk.text for chunk in split(LoadedDocument("question", question), embedder.offsets, limit)]
    texts = texts[:: -(-len(texts) // MOST_PIECES)]
    pooled = numpy.array([len(text) for text in texts]) @ numpy.array([embedder.embed_query(text) for text in texts])
    return (pooled / (numpy.linalg.norm(pooled) or 1)).tolist()
