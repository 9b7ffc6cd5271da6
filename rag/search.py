"""Several texts searched for at once, for one list of passages."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from rag.conversation import identity


async def search(texts: Sequence[str], retriever: BaseRetriever, **keywords: Any) -> tuple[str, list[Document]]:
    """The text that brought the best passage, and the best passages of all, as many as one search gives.

    A passage counts with its best score: the retriever's are comparable between questions. Those of a retriever without
    scores are taken in turns: the first of each text, then the second. `keywords` are those of the retriever's call.
    Raises what the retriever raises.
    """
    found = await asyncio.gather(*map(partial(retriever.ainvoke, **keywords), texts))
    ranked = sorted(
        ((_order(document, rank), at, document) for at, some in enumerate(found) for rank, document in enumerate(some)),
        key=lambda entry: entry[:2],
    )
    best: dict[object, tuple[int, Document]] = {}
    for _, at, document in ranked:
        best.setdefault(identity(document), (at, document))
    first = next((at for at, _ in best.values()), 0)
    return texts[first], [document for _, document in best.values()][: max(map(len, found))]


def _order(document: Document, rank: int) -> tuple[float, int]:
    return -document.metadata.get("score", 0.0), rank
